/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only */
/* The common part of controls that act on delay once per round trip. */
#ifndef PEPD_BPF_DELAY_H
#define PEPD_BPF_DELAY_H

#include "tcp.h"

#define RTT_NONE 0x7fffffffu
/* With fewer samples, one delayed acknowledgement could be the whole round trip. */
#define SAMPLES_MIN 3u

struct delay {
	u32 base_rtt_us;  /* the overall minimum */
	u32 least_rtt_us; /* the minimum of this round trip: the sample without queue */
	u32 samples;      /* number of samples in it */
	u32 ends;         /* sequence number whose acknowledgement ends it */
	bool watched;     /* not in recovery */
};

static __always_inline void delay_begin(struct tcp_sock *tp, struct delay *d)
{
	d->ends = tp->snd_nxt;
	d->samples = 0;
	d->least_rtt_us = RTT_NONE;
}

static __always_inline void delay_watch(struct tcp_sock *tp, struct delay *d)
{
	d->watched = 1;
	delay_begin(tp, d);
}

static __always_inline void delay_init(struct tcp_sock *tp, struct delay *d)
{
	d->base_rtt_us = RTT_NONE;
	delay_watch(tp, d);
}

static __always_inline void delay_note(struct delay *d, s32 rtt_us)
{
	u32 rtt = rtt_us + 1;

	if (rtt_us < 0)
		return;
	d->base_rtt_us = min_u32(d->base_rtt_us, rtt);
	d->least_rtt_us = min_u32(d->least_rtt_us, rtt);
	d->samples++;
}

static __always_inline void delay_set_state(struct tcp_sock *tp, struct delay *d, u8 state)
{
	if (state == TCP_CA_Open)
		delay_watch(tp, d);
	else
		d->watched = 0;
}

/* Data in flight before a pause says nothing about the path after it. */
static __always_inline void delay_event(struct tcp_sock *tp, struct delay *d,
					enum tcp_ca_event event)
{
	if (event == CA_EVENT_CWND_RESTART || event == CA_EVENT_TX_START)
		delay_watch(tp, d);
}

/* Segments of `window` that are in queues. */
static __always_inline u32 delay_queued(struct delay *d, u32 window)
{
	u64 extra = d->least_rtt_us - d->base_rtt_us;

	return (u64)window * extra / max_u32(d->base_rtt_us, 1);
}

#endif
