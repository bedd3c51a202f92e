/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only */
/*
 * Hybla's rho: how much longer the round trip is than that of the connection to keep up with
 * (Caini and Firrincieli 2004), and the increments that follow from it.
 */
#ifndef PEPD_BPF_RTT0_H
#define PEPD_BPF_RTT0_H

#include "stated.h"

/* RTT0 of sockets that state none, in us: what its authors and the kernel use. */
#define RTT0_DEFAULT_US 25000u

static __always_inline u32 rtt0_of(struct sock *sk)
{
	struct stated *stated = stated_of(sk);

	return stated && stated->rtt0_us ? stated->rtt0_us : RTT0_DEFAULT_US;
}

/* rho in eighths, at least 1, from a round trip in eighths of us, as in tcp_sock.srtt_us. */
static __always_inline u32 rho_eighths(u32 srtt_us, u32 rtt0_us)
{
	u32 eighths = srtt_us / (rtt0_us ? rtt0_us : RTT0_DEFAULT_US);

	return min_u32(max_u32(eighths, 8), 0xffff);
}

/* 2^(n/8) in 1/128. */
const volatile u32 root_of_two[8] = { 128, 139, 152, 165, 181, 197, 215, 234 };

/* What one acknowledgement adds in slow start, 2^rho - 1, in 1/128 of a segment. */
static __always_inline u32 slow_start_increment(u32 rho_8)
{
	u32 whole = min_u32(rho_8 >> 3, 16);

	return (1u << whole) * root_of_two[rho_8 & 7] - 128;
}

/* What one acknowledgement adds in congestion avoidance, rho^2 / window, in 1/128 of a segment. */
static __always_inline u32 avoidance_increment(u32 rho_8, u32 window)
{
	return (u64)rho_8 * rho_8 * 2 / max_u32(window, 1);
}

#endif
