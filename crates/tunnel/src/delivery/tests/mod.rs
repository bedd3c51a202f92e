mod bare;
mod figures;
mod schedules;
