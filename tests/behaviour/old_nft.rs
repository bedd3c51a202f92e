//! An earlier `nft`: a wrapper that parses like it, and runs this machine's.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use pepd_tests::{bed::Place, echo::EchoServer, matrix::matrix_pepd_only, pep::Pep};

use crate::support::{PORT, connect, echo_once};

/// In JSON, nft before 1.0.6 silently ignores statements of sets, and before 1.0.0 rejects lists of
/// flags. In text, the latter requires a `type` before `icmpx`.
const OLD_NFT: &str = r#"#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
[ "$1" = --version ] && echo 'nftables v0.9.8 (E.D.S.)' && exit
case " $* " in
*' -f '*)
    text=$(cat | sed 's/,"stmt":\[[^]]*\]//g')
    case $text in
    *'"&":['*'["'* | *'icmpx port'*)
        echo 'Error: syntax error' >&2
        exit 1
        ;;
    esac
    echo "$text" | exec nft "$@"
    ;;
*) exec nft "$@" ;;
esac
"#;

fn write_old_nft(directory: &Path) {
    let nft = directory.join("nft");
    fs::write(&nft, OLD_NFT).expect("a temporary file");
    fs::set_permissions(nft, Permissions::from_mode(0o755)).expect("the file is writable");
}

#[test]
fn an_earlier_nft_reads_the_rules_as_they_are_meant() {
    matrix_pepd_only(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let tools = tempfile::tempdir().expect("a temporary directory");
        write_old_nft(tools.path());
        let config = bed.config("").expect("not direct");
        let mut pep = Pep::start_by(&bed.gateway, &config, |mut command| {
            command.env("PATH", tools.path());
            command
        });
        let mut stream = connect(bed);
        echo_once(&mut stream, b"accelerated");
        pep.wait_counter("flows_open", |open| open == 1);
        drop(stream);
        assert_eq!(pep.terminate(), 0);
        pep.assert_nothing_left();
    });
}
