//! Rules as other programs install them on a gateway between `lan0` and `wan0`.

/// OpenWrt's fw4: a zone with rejected input (guests), and the zone of the link.
pub const FW4: &str = r#"
table inet fw4
delete table inet fw4
table inet fw4 {
    chain input {
        type filter hook input priority filter; policy drop;
        # chain-pre/input
        iif "lo" accept comment "!fw4: Accept traffic from loopback"
        ct state vmap { established : accept, related : accept } comment "!fw4: Handle inbound flows"
        tcp flags & (fin | syn | rst | ack) == syn jump syn_flood
        iifname "lan0" jump input_lan comment "!fw4: Handle lan input traffic"
        iifname "wan0" jump input_wan comment "!fw4: Handle wan input traffic"
        jump handle_reject
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        # chain-pre/forward
        ct state vmap { established : accept, related : accept } comment "!fw4: Handle forwarded flows"
        iifname "lan0" jump forward_lan comment "!fw4: Handle lan forward traffic"
        iifname "wan0" jump forward_wan comment "!fw4: Handle wan forward traffic"
        jump handle_reject
    }
    chain output {
        type filter hook output priority filter; policy drop;
        # chain-pre/output
        oif "lo" accept comment "!fw4: Accept traffic towards loopback"
        ct state vmap { established : accept, related : accept } comment "!fw4: Handle outbound flows"
        meta l4proto { icmp, icmpv6 } accept
        jump handle_reject
    }
    chain handle_reject {
        meta l4proto tcp reject with tcp reset comment "!fw4: Reject TCP traffic"
        reject comment "!fw4: Reject any other traffic"
    }
    chain syn_flood {
        limit rate 25/second burst 50 packets return comment "!fw4: Accept SYN packets below rate-limit"
        drop comment "!fw4: Drop excess packets"
    }
    chain input_lan {
        meta l4proto { icmp, icmpv6 } accept
        udp dport { 53, 67 } accept
        jump handle_reject
    }
    chain input_wan {
        meta l4proto { icmp, icmpv6 } accept
        jump handle_reject
    }
    chain forward_lan {
        oifname "wan0" ct state invalid drop comment "!fw4: Prevent NAT leakage"
        oifname "wan0" accept comment "!fw4: Accept lan to wan forwarding"
        jump handle_reject
    }
    chain forward_wan {
        jump handle_reject
    }
    chain mangle_forward {
        type filter hook forward priority mangle; policy accept;
        iifname "wan0" tcp flags & (fin | syn | rst) == syn tcp option maxseg size set rt mtu
    }
}
"#;

/// As in many examples, with policies of drop in all three hooks.
pub const NFTABLES: &str = r#"
table inet filter {
    chain input {
        type filter hook input priority filter; policy drop;
        iif lo accept
        ct state invalid drop
        ct state established,related accept
        meta l4proto { icmp, icmpv6 } accept
        tcp dport 22 accept
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        iifname "lan0" oifname "wan0" accept
    }
    chain output {
        type filter hook output priority filter; policy drop;
        oif lo accept
        ct state established,related accept
        meta l4proto { icmp, icmpv6, udp } accept
    }
}
"#;

/// Policies of drop by iptables, for either family.
pub const IPTABLES: &str = "
    iptables -A INPUT -i lo -j ACCEPT
    iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    iptables -A INPUT ! -p tcp -j ACCEPT
    iptables -A INPUT -p tcp --dport 22 -m comment --comment 'administrators -j DROP' -j ACCEPT
    iptables -P INPUT DROP
    iptables -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    iptables -A FORWARD -i lan0 -o wan0 -j ACCEPT
    iptables -P FORWARD DROP
    iptables -A OUTPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    iptables -A OUTPUT ! -p tcp -j ACCEPT
    iptables -P OUTPUT DROP
";

/// Docker's, with one network of containers, and rules that a gateway's operator has added.
pub const DOCKER: &str = "
    iptables -N DOCKER
    iptables -N DOCKER-ISOLATION-STAGE-1
    iptables -N DOCKER-ISOLATION-STAGE-2
    iptables -N DOCKER-USER
    iptables -P FORWARD DROP
    iptables -A FORWARD -j DOCKER-USER
    iptables -A FORWARD -j DOCKER-ISOLATION-STAGE-1
    iptables -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    iptables -A FORWARD -o docker0 -j DOCKER
    iptables -A FORWARD -i docker0 ! -o docker0 -j ACCEPT
    iptables -A FORWARD -i docker0 -o docker0 -j ACCEPT
    iptables -A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
    iptables -A DOCKER-ISOLATION-STAGE-1 -j RETURN
    iptables -A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
    iptables -A DOCKER-ISOLATION-STAGE-2 -j RETURN
    iptables -A DOCKER-USER -j RETURN
    iptables -I DOCKER-USER -i lan0 -o wan0 -j ACCEPT
    iptables -I DOCKER-USER -i wan0 -o lan0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
";

/// Tailscale's, of a subnet router.
pub const TAILSCALE: &str = "
    iptables -N ts-input
    iptables -N ts-forward
    iptables -t nat -N ts-postrouting
    iptables -A ts-input -s 100.64.0.1/32 -i lo -j ACCEPT
    iptables -A ts-input -s 100.115.92.0/23 ! -i tailscale0 -j RETURN
    iptables -A ts-input -s 100.64.0.0/10 ! -i tailscale0 -j DROP
    iptables -A ts-input -i tailscale0 -j ACCEPT
    iptables -A ts-input -p udp --dport 41641 -j ACCEPT
    iptables -A ts-forward -i tailscale0 -j MARK --set-xmark 0x40000/0xff0000
    iptables -A ts-forward -m mark --mark 0x40000/0xff0000 -j ACCEPT
    iptables -A ts-forward -s 100.64.0.0/10 -o tailscale0 -j DROP
    iptables -A ts-forward -o tailscale0 -j ACCEPT
    iptables -t nat -A ts-postrouting -m mark --mark 0x40000/0xff0000 -j MASQUERADE
    iptables -I INPUT -j ts-input
    iptables -I FORWARD -j ts-forward
    iptables -t nat -I POSTROUTING -j ts-postrouting
";

/// Changes by `--netfilter-mode=nodivert`.
pub const TAILSCALE_DIVERTS_NO_MORE: &str = "
    iptables -D INPUT -j ts-input
    iptables -D FORWARD -j ts-forward
    iptables -t nat -D POSTROUTING -j ts-postrouting
";

/// Routes of mwan3: table 1 for `wan0`, table 2 for `wan1`.
pub const MWAN3_ROUTES: &str = "
    ip route add default via 10.2.0.2 dev wan0 table 1
    ip route add default via 10.6.0.2 dev wan1 table 2
    ip route add 10.1.0.0/24 dev lan0 table 1
    ip route add 10.1.0.0/24 dev lan0 table 2
    ip rule add pref 1001 iif wan0 lookup 1
    ip rule add pref 1002 iif wan1 lookup 2
    ip rule add pref 2001 fwmark 0x100/0x3f00 lookup 1
    ip rule add pref 2002 fwmark 0x200/0x3f00 lookup 2
    ip rule add pref 2061 fwmark 0x3d00/0x3f00 blackhole
";

/// Marks of mwan3: connected networks use the main table, then follows one rule of the operator's.
pub const MWAN3: &str = "
    iptables -t mangle -F
    iptables -t mangle -N mwan3_hook || true
    iptables -t mangle -N mwan3_rules || true
    iptables -t mangle -N mwan3_policy_wan_only || true
    iptables -t mangle -A mwan3_hook -m mark --mark 0x0/0x3f00 -j CONNMARK --restore-mark --nfmask 0x3f00 --ctmask 0x3f00
    iptables -t mangle -A mwan3_hook -d 10.1.0.0/24 -m mark --mark 0x0/0x3f00 -j MARK --set-xmark 0x3f00/0x3f00
    iptables -t mangle -A mwan3_hook -d 10.2.0.0/24 -m mark --mark 0x0/0x3f00 -j MARK --set-xmark 0x3f00/0x3f00
    iptables -t mangle -A mwan3_hook -m mark --mark 0x0/0x3f00 -j mwan3_rules
    iptables -t mangle -A mwan3_hook -j CONNMARK --save-mark --nfmask 0x3f00 --ctmask 0x3f00
    iptables -t mangle -A mwan3_rules -i lan0 -m mark --mark 0x0/0x3f00 -j mwan3_policy_wan_only
    iptables -t mangle -A mwan3_policy_wan_only -m mark --mark 0x0/0x3f00 -j MARK --set-xmark 0x100/0x3f00
    iptables -t mangle -A PREROUTING -j mwan3_hook
    iptables -t mangle -A OUTPUT -j mwan3_hook
";
