use bpf_cc::Missing;

use super::*;

/// Returns a machine with these native controls, programs of other processes, and modules.
pub(in super::super) fn machine(
    native: &[&str],
    other_processes: &[&str],
    modules: &[&str],
    obstacle: Option<LoadError>,
) -> Catalogue {
    let registered = |names: &[&str], native| -> Vec<_> {
        let name = |name: &&str| Registered {
            name: (*name).to_owned(),
            native: OnceCell::from(native),
        };
        names.iter().map(name).collect()
    };
    Catalogue {
        registered: [registered(native, true), registered(other_processes, false)].concat(),
        default: "cubic".to_owned(),
        modules: Some(modules.iter().map(|&name| name.to_owned()).collect()),
        obstacle,
    }
}

pub(in super::super) fn no_perfmon() -> LoadError {
    LoadError::Capabilities(Missing(vec!["CAP_PERFMON"]))
}

fn names(names: &[&str]) -> Vec<CongestionName> {
    let names = names.iter().map(|name| name.parse().expect("a name"));
    names.collect()
}

#[test]
fn the_kernels_own_precedes_pepds() {
    let has = machine(&["reno", "hybla"], &[], &["vegas", "hybla"], None);
    assert_eq!(has.means("hybla").ok(), Some(Means::Kernel));
    assert_eq!(has.means("vegas").ok(), Some(Means::Module));
    let program = Means::Program(Control::HyblaSat);
    assert_eq!(has.means("hybla_sat").ok(), Some(program));
}

#[test]
fn a_program_of_another_process_is_not_used_if_pepd_has_its_own() {
    let has = machine(&["reno"], &["hybla", "theirs"], &["hybla"], None);
    // The module cannot be loaded then: the name is taken.
    let program = Means::Program(Control::Hybla);
    assert_eq!(has.means("hybla").ok(), Some(program));
    assert_eq!(has.means("theirs").ok(), Some(Means::OtherProcess));
}

#[test]
fn without_btf_pepds_controls_are_unavailable_and_the_next_is_chosen() {
    let has = machine(&["reno", "cubic"], &[], &[], Some(LoadError::NoBtf));
    let wanted = names(&["hybla", "cubic", "nonesuch"]);
    let choice = has.choose(&wanted);
    assert_eq!(choice.chosen, Some((&wanted[1], Means::Kernel)));
    let [why] = choice.passed_over.as_slice() else {
        panic!("one, not {:?}", choice.passed_over)
    };
    assert!(why.to_string().starts_with("`hybla`: "), "{why}");
    assert!(why.to_string().contains("no BTF"), "{why}");
}

#[test]
fn a_kernel_that_is_too_old_is_named_wherever_a_control_is_asked_for() {
    let obstacle = LoadError::TooOld {
        needs: "6.1",
        release: "5.15.0-91-generic".to_owned(),
    };
    let has = machine(&["reno", "bbr"], &[], &[], Some(obstacle));
    let wanted = names(&["hybla_sat", "bbr"]);
    let choice = has.choose(&wanted);
    assert_eq!(choice.chosen, Some((&wanted[1], Means::Kernel)));
    let [why] = choice.passed_over.as_slice() else {
        panic!("one, not {:?}", choice.passed_over)
    };
    assert_eq!(
        why.instead(&wanted[1]),
        "congestion control hybla_sat is not available, using bbr instead: eBPF congestion controls need \
         Linux 6.1 or later; this is 5.15.0-91-generic"
    );
}

#[test]
fn privileges_that_this_process_lacks_others_may_have() {
    let has = machine(&["reno"], &[], &[], Some(no_perfmon()));
    let program = Means::Program(Control::Steady);
    assert_eq!(has.means("steady").ok(), Some(program));
}

#[test]
fn an_unknown_name_is_compared_with_those_there_are() {
    let has = machine(&["reno"], &["theirs"], &["illinois"], None);
    let why = |name| has.means(name).expect_err("unknown").to_string();
    assert_eq!(why("hylba"), "`hylba` is not known (did you mean `hybla`?)");
    assert_eq!(
        why("ilinois"),
        "`ilinois` is not known (did you mean `illinois`?)"
    );
    assert_eq!(why("zebra"), "`zebra` is not known");
    let ours = Control::names().join(", ");
    let expected = format!("the kernel has reno, illinois; pepd has {ours}");
    assert_eq!(has.inventory(), expected);
}

#[test]
fn this_machine_has_reno() {
    let here = Catalogue::of_machine().expect("/proc");
    assert_eq!(here.means("reno").ok(), Some(Means::Kernel));
    assert!(here.means("nonesuch").is_err());
}

/// `pep-core` decides by names, `bpf-cc` has the controls: both must agree.
#[test]
fn what_a_name_needs_is_what_its_control_needs() {
    for control in Control::ALL {
        let name: CongestionName = control.name().parse().expect("a name");
        let whole = name.takes_the_whole_link();
        assert_eq!(whole, control.needs_dedicated_link(), "{name}");
        assert_eq!(whole, control.needs_rate(), "{name}");
    }
    assert_eq!(bpf_cc::RTT0_DEFAULT, pep_core::site::RTT0_DEFAULT);
}
