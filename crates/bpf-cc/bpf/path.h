/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only */
/*
 * What a paced control knows of its path: the round trip without a queue, the rate at which
 * data arrives, and whether there is a queue now.
 */
#ifndef PEPD_BPF_PATH_H
#define PEPD_BPF_PATH_H

#include "tcp.h"

/* Rates are in segments per second, times 256. */
#define RATE_SHIFT 8
/* Rounds of which the best rate counts: twice as many as the halves below. */
#define RATE_ROUNDS 5
/* So long without a round trip near the least one, and the least one is measured again. */
#define FLOOR_STALE_US 10000000u
/* Round trips so much above the least one mean a queue, beside the noise of timers. */
#define QUEUE_NOISE_US 4000u

struct path {
	u64 floor_seen_us;  /* when a round trip near the least one was seen last */
	u64 probe_until_us; /* the floor is being measured until then; 0 when it is not */
	u32 least_rtt_us;   /* the round trip without a queue; 0 until there is a sample */
	u32 probed_rtt_us;  /* the least round trip of the measurement so far */
	u32 last_rtt_us;
	u32 round_end;      /* count of delivered segments at which the round ends */
	u32 best[2];        /* best rates of these and of the rounds before */
	u8 rounds;          /* since best[0] began */
	bool round_began;   /* with this acknowledgement */
};

static __always_inline void path_init(struct tcp_sock *tp, struct path *p)
{
	p->least_rtt_us = tp->srtt_us >> 3;
	p->last_rtt_us = p->least_rtt_us;
	p->floor_seen_us = tp->tcp_mstamp;
	p->round_end = tp->delivered;
}

/* Whether the floor is being measured, for which the queue must drain. */
static __always_inline bool path_probes(struct path *p)
{
	return p->probe_until_us != 0;
}

/*
 * The least round trip. When none near it was seen for long, either the path has become longer
 * or a queue stands; only less in flight for a round trip tells.
 */
static __always_inline void path_note_rtt(struct tcp_sock *tp, struct path *p, long rtt_us)
{
	u64 now = tp->tcp_mstamp;
	u32 rtt;

	if (rtt_us <= 0)
		return;
	rtt = rtt_us;
	p->last_rtt_us = rtt;
	if (!p->least_rtt_us || rtt < p->least_rtt_us)
		p->least_rtt_us = rtt;
	if (rtt <= p->least_rtt_us + (p->least_rtt_us >> 3) + QUEUE_NOISE_US) {
		p->floor_seen_us = now;
		p->probe_until_us = 0;
	} else if (p->probe_until_us) {
		if (!p->probed_rtt_us || rtt < p->probed_rtt_us)
			p->probed_rtt_us = rtt;
		if (now >= p->probe_until_us) {
			p->least_rtt_us = p->probed_rtt_us;
			p->floor_seen_us = now;
			p->probe_until_us = 0;
		}
	} else if (now - p->floor_seen_us > FLOOR_STALE_US) {
		p->probed_rtt_us = 0;
		/* One round trip until the smaller window shows, one to see it. */
		p->probe_until_us = now + 2 * (u64)rtt;
	}
}

/*
 * The best rate at which segments were delivered in the last rounds, and where rounds end. Rounds count
 * only while the window is in use: what a busy time has shown is not forgotten in a quiet one.
 */
static __always_inline void path_note_rate(struct tcp_sock *tp, struct path *p,
					   const struct rate_sample *rs, bool in_use)
{
	u64 rate;

	p->round_began = 0;
	if (rs->delivered < 0 || rs->interval_us <= 0)
		return;
	if (!before(rs->prior_delivered, p->round_end)) {
		p->round_end = tp->delivered;
		p->round_began = 1;
		if (in_use && ++p->rounds >= RATE_ROUNDS) {
			p->rounds = 0;
			p->best[1] = p->best[0];
			p->best[0] = 0;
		}
	}
	rate = ((u64)(u32)rs->delivered << RATE_SHIFT) * 1000000 / (u64)rs->interval_us;
	if (rate > 0xffffffffull)
		rate = 0xffffffffull;
	p->best[0] = max_u32(p->best[0], rate);
}

/* Segments that the path holds without a queue, at the rate that it was seen to have; 0 at first. */
static __always_inline u64 path_segments(struct path *p)
{
	u64 best = max_u32(p->best[0], p->best[1]);

	return (best * p->least_rtt_us / 1000000) >> RATE_SHIFT;
}

/* Whether the rate is higher than that of the rounds before, so that its end is not in sight. */
static __always_inline bool path_rises(struct path *p)
{
	return p->best[0] > p->best[1] + (p->best[1] >> 3);
}

/* Whether the last round trip contained a queue: then a loss is congestion. */
static __always_inline bool path_queues(struct path *p)
{
	u32 slack = (p->least_rtt_us >> 4) + (p->least_rtt_us >> 3) + QUEUE_NOISE_US;

	return p->last_rtt_us > p->least_rtt_us + slack;
}

#endif
