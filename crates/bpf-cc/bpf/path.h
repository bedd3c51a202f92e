/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only */
/*
 * A paced control's model of its path: the round trip without a queue, the delay that the return
 * path adds now, the delivery rate, and whether there is a queue.
 *
 * A round trip grows for two reasons: data waits before the bottleneck, which a smaller window
 * fixes, or acknowledgements are late, which needs a larger one. Each acknowledgement carries the
 * receiver's clock (RFC 7323): the local clock minus it is the return path's delay plus a constant.
 * Its minimum stands for an empty return path. Without time stamps all growth counts as queue.
 */
#ifndef PEPD_BPF_PATH_H
#define PEPD_BPF_PATH_H

#include "tcp.h"

/* Rates are in segments per second, times 256. */
#define RATE_SHIFT 8
/* Rounds whose maximum rate counts: twice as many as the halves below. */
#define RATE_ROUNDS 5
/*
 * After this time, and eight round trips more, without a round trip near the minimum, the minimum
 * is measured again; seldom where that has shown a queue of other flows.
 */
#define FLOOR_STALE_MS 8000u
#define QUEUE_STALE_MS 32000u
/* The excess of a round trip over the minimum that indicates a queue, beyond timer noise. */
#define QUEUE_NOISE_US 4000u
/* Clocks tick in milliseconds: two readings can differ by this much for that reason alone. */
#define STAMP_NOISE_MS 2u
/* The minimum return delay rises by 1 ms in this time (122 ppm), because clocks drift. */
#define STAMP_LEAK_MS 8192u
/* If time stamps explain this much more than the delay, the receiver's clock has other ticks. */
#define STAMP_LIE_US 64000u

/* The assessment of the receiver's time stamps. */
enum { STAMPS_NONE, STAMPS_USED, STAMPS_REFUTED };

/* A value of `agreed`, which otherwise counts measurements with about the same result. */
#define QUEUE_MOVES 7

struct path {
	u32 floor_seen_ms;   /* time of the last round trip near the minimum */
	u32 probe_until_ms;  /* end of the measurement of the floor, if `probing` */
	u32 least_rtt_us;    /* the round trip without a queue; 0 until there is a sample */
	u32 probed_rtt_us;   /* the minimum round trip of the measurement so far */
	u32 agreed_rtt_us;   /* that of the measurement before */
	u32 rtt_us;          /* recent, without the return path's delay */
	u32 mean_rtt_us;     /* of this round, with it */
	u32 return_us[2];    /* maximum of the return path, this round and the one before */
	u32 round_end;       /* count of delivered segments at which the round ends */
	u32 best[2];         /* maximum rates of these and of the rounds before */
	u32 rate;            /* the latest */
	u32 stamp_least_ms;  /* minimum difference of the clocks */
	u32 stamp_leaked_ms; /* time when it was last raised */
	u8 stamps;
	u8 samples;          /* in mean_rtt_us */
	u8 rounds;           /* since best[0] began */
	u8 agreed : 3;       /* measurements in succession that had about the same */
	bool probing : 1;
	bool clear : 1;      /* a measurement has ended, and there is no queue beyond the minimum */
	bool round_began : 1; /* with this acknowledgement */
	bool measured : 1;    /* the minimum round trip is that of a round, not of the handshake */
};

static __always_inline u32 now_ms(struct tcp_sock *tp)
{
	return tp->tcp_mstamp / 1000;
}

static __always_inline void path_init(struct tcp_sock *tp, struct path *p)
{
	p->least_rtt_us = tp->srtt_us >> 3;
	p->rtt_us = p->least_rtt_us;
	p->floor_seen_ms = now_ms(tp);
	p->round_end = tp->delivered;
}

/* True while the floor is being measured, for which the queue must drain. */
static __always_inline bool path_probes(struct path *p)
{
	return p->probing;
}

/* The round trip to fill: without a queue of data, but with the return path's delay. */
static __always_inline u32 path_span_us(struct path *p)
{
	u64 span = (u64)p->least_rtt_us + max_u32(p->return_us[0], p->return_us[1]);

	return min_u64(span, 0xffffffffu);
}

/* The return path's share in a round trip of `rtt`, by the time stamps. */
static __always_inline u32 path_returned(struct tcp_sock *tp, struct path *p, u32 rtt)
{
	u32 stamp = tp->rx_opt.rcv_tsval;
	u32 now = now_ms(tp);
	u32 late = now - stamp;
	u32 beyond;
	u64 returned;

	if (!stamp || p->stamps == STAMPS_REFUTED)
		return 0;
	if (p->stamps == STAMPS_NONE || (s32)(late - p->stamp_least_ms) < 0) {
		p->stamps = STAMPS_USED;
		p->stamp_least_ms = late;
		p->stamp_leaked_ms = now;
	}
	if (now - p->stamp_leaked_ms > STAMP_LEAK_MS) {
		p->stamp_leaked_ms = now;
		p->stamp_least_ms++;
	}
	beyond = late - p->stamp_least_ms;
	if ((s32)beyond <= (s32)STAMP_NOISE_MS)
		return 0;
	returned = (u64)(beyond - STAMP_NOISE_MS) * 1000;
	if (rtt <= p->least_rtt_us)
		return 0;
	if (returned > (u64)(rtt - p->least_rtt_us) + (p->least_rtt_us >> 2) + STAMP_LIE_US) {
		p->stamps = STAMPS_REFUTED;
		p->return_us[0] = 0;
		p->return_us[1] = 0;
		return 0;
	}
	return min_u64(returned, rtt - p->least_rtt_us);
}

/* True if a round trip is close to the minimum. */
static __always_inline bool path_near(struct path *p, u32 rtt)
{
	return rtt <= p->least_rtt_us + (p->least_rtt_us >> 3) + QUEUE_NOISE_US;
}

/*
 * The end of a measurement in which the queue did not drain. Either it belongs to other flows, and
 * varies, or the path has become longer: then several measurements agree.
 */
static __always_inline void path_judge(struct path *p, u32 agree)
{
	u32 noise = (p->probed_rtt_us >> 6) + 1000;
	u32 before = p->agreed_rtt_us ? p->agreed_rtt_us : p->probed_rtt_us;

	if (p->probed_rtt_us > before + noise || before > p->probed_rtt_us + noise)
		p->agreed = QUEUE_MOVES;
	else
		p->agreed = p->agreed == QUEUE_MOVES ? 1 : p->agreed + 1;
	p->agreed_rtt_us = p->probed_rtt_us;
	if (p->agreed != QUEUE_MOVES && p->agreed > agree) {
		p->least_rtt_us = p->probed_rtt_us;
		p->agreed = 0;
		p->agreed_rtt_us = 0;
		p->clear = 1;
	}
}

/*
 * The minimum round trip, as the mean of a round, because it includes jitter. If none near it
 * occurs for long, either the path has become longer or a queue stands; only less in flight tells.
 * `agree` is the number of further measurements that must confirm a longer path.
 */
static __always_inline void path_note_rtt(struct tcp_sock *tp, struct path *p, long rtt_us, u32 agree)
{
	u32 now = now_ms(tp);
	u32 stale = p->agreed == QUEUE_MOVES ? QUEUE_STALE_MS : FLOOR_STALE_MS;
	u32 returned, forward, rtt;

	p->clear = 0;
	if (rtt_us <= 0 || rtt_us > 0x7fffffff)
		return;
	rtt = rtt_us;
	if (!p->least_rtt_us) {
		p->least_rtt_us = rtt;
		p->rtt_us = rtt;
	}
	returned = path_returned(tp, p, rtt);
	p->return_us[0] = max_u32(p->return_us[0], returned);
	forward = rtt - returned;
	p->rtt_us = mean_u32(p->rtt_us, forward, 4);
	if (p->samples < 255)
		p->samples++;
	p->mean_rtt_us = mean_u32(p->mean_rtt_us, rtt, p->samples);
	if (path_near(p, forward))
		p->floor_seen_ms = now;
	if (p->probing) {
		if (!p->probed_rtt_us || forward < p->probed_rtt_us)
			p->probed_rtt_us = forward;
		if (path_near(p, p->rtt_us)) {
			p->probing = 0;
			p->agreed = 0;
			p->agreed_rtt_us = 0;
			p->clear = 1;
		} else if ((s32)(now - p->probe_until_ms) >= 0) {
			p->probing = 0;
			p->floor_seen_ms = now;
			path_judge(p, agree);
		}
	} else if (now - p->floor_seen_ms > stale + rtt / 125) {
		p->probed_rtt_us = 0;
		/* One round trip until the smaller window takes effect, one to measure it. */
		p->probe_until_ms = now + 2 * (rtt / 1000 + 1);
		p->probing = 1;
	}
}

static __always_inline void path_end_round(struct sock *sk, struct path *p)
{
	/* Without a stated rate, the first flight is a burst, and queues behind itself. */
	bool first = !p->measured && stated_rate(sk);

	if (p->samples && (first || p->mean_rtt_us < p->least_rtt_us))
		p->least_rtt_us = p->mean_rtt_us;
	if (p->samples)
		p->measured = 1;
	p->samples = 0;
	p->mean_rtt_us = 0;
	p->return_us[1] = p->return_us[0];
	p->return_us[0] = 0;
}

/* The measured rate of the path; 0 at first. */
static __always_inline u32 path_rate(struct path *p)
{
	return max_u32(p->best[0], p->best[1]);
}

/* True if a queue stands: then a loss is congestion. */
static __always_inline bool path_queues(struct path *p)
{
	u32 slack = (p->least_rtt_us >> 4) + (p->least_rtt_us >> 3) + QUEUE_NOISE_US;

	return p->rtt_us > p->least_rtt_us + slack;
}

/*
 * The maximum delivery rate of the last rounds, and the ends of rounds. Rounds count only while the
 * window is in use: measurements of a busy time are kept during a quiet one.
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
		path_end_round((struct sock *)tp, p);
		if (in_use && ++p->rounds >= RATE_ROUNDS) {
			p->rounds = 0;
			p->best[1] = p->best[0];
			p->best[0] = 0;
		}
	}
	rate = ((u64)(u32)rs->delivered << RATE_SHIFT) * 1000000 / (u64)rs->interval_us;
	p->rate = min_u64(rate, 0xffffffffull);
	p->best[0] = max_u32(p->best[0], p->rate);
	/* The delivery rate while a queue stands is the path's present capacity. */
	if (p->round_began && path_queues(p)) {
		p->best[0] = p->rate;
		p->best[1] = p->rate;
	}
}

/* Segments that arrive at a rate in so long. */
static __always_inline u64 segments_in(u32 rate, u64 time_us)
{
	return ((u64)rate * min_u64(time_us, 0xffffffffu) / 1000000) >> RATE_SHIFT;
}

/* Segments that the path holds without a queue at a rate. */
static __always_inline u64 path_holds(struct path *p, u32 rate)
{
	return segments_in(rate, path_span_us(p));
}

/* Whether the rate is higher than that of the rounds before, so that its end is not in sight. */
static __always_inline bool path_rises(struct path *p)
{
	return p->best[0] > p->best[1] + (p->best[1] >> 3);
}

#endif
