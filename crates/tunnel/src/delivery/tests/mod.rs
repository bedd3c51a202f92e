mod bare;
mod figures;
mod rules;
mod schedules;
mod setup;
