/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only */
/* Terms that pepd states for one socket before it connects. */
#ifndef PEPD_BPF_STATED_H
#define PEPD_BPF_STATED_H

#include "tcp.h"

/* 0 where nothing is stated. */
struct stated {
	u32 rtt0_us;
	u32 rto_min_us;
};

/* Listeners pass theirs on to the connections that they accept. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct stated);
} per_socket SEC(".maps");

static __always_inline struct stated *stated_of(struct sock *sk)
{
	return bpf_sk_storage_get(&per_socket, sk, 0, 0);
}

/* Sets the stated minimum of the retransmission timer, also where no socket option does. */
static __always_inline void state_rto_min(struct sock *sk)
{
	struct stated *stated = stated_of(sk);
	u32 us = stated ? stated->rto_min_us : 0;

	if (us)
		bpf_setsockopt(sk, SOL_TCP, TCP_BPF_RTO_MIN, &us, sizeof(us));
}

#endif
