// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
/*
 * Hybla for satellite links, as its authors recommend it and the kernel does not have it.
 *
 * Caini and Firrincieli (2004) ask for pacing and for a first slow start threshold from Hoe's
 * estimate of the path's bandwidth-delay product (Hoe, SIGCOMM 1996). On top of that:
 *
 * - Increments are multiplied by the segments that an acknowledgement covers, so that stretch
 *   acknowledgements do not slow growth (RFC 3465 does so for the standard increments).
 * - The window is bounded, by the rate that SO_MAX_PACING_RATE states or else by the rate
 *   that was seen to arrive, times the least round trip: 2^rho - 1 would put ten thousand segments
 *   into a queue in half a second.
 * - A loss that comes without a queue is the link's and takes nothing from the window. One that comes
 *   with a queue, or very many of them, are congestion and take a quarter, at most once in a round trip.
 *
 * Recovery is by this program's window too (cong_control), not by proportional rate reduction.
 */
#include "cong_control.h"
#include "path.h"
#include "rtt0.h"

/*
 * Bounds of the window, in 1/128 of a bandwidth-delay product. By the stated rate: room for jitter. By
 * the rate that was seen to arrive: room to see more, less where a queue stands already, more while
 * each look shows a higher rate than the one before.
 */
#define HEADROOM_STATED 134
#define HEADROOM_QUEUED 144
#define HEADROOM_FREE 160
#define HEADROOM_RISING 192
/* Of segments, the window's smaller part. */
#define FRACTION_BITS 16
#define FRACTION_ONE (1u << FRACTION_BITS)
/* Windows below this are not worth halving. */
#define WINDOW_MIN 4u
/*
 * More losses than a fifth of the window in one round are congestion even without a queue: a policer, or
 * a queue that others have kept full since before the flow began.
 */
#define LOSS_SHARE 5
#define LOSS_MIN 8u
/* In 1/128 of a segment: while nothing is known of the path, the window doubles in a round trip. */
#define BLIND_INCREMENT 128
/* A train of fewer segments says too little of the path's rate. */
#define TRAIN_MIN 4u
/*
 * No train is believed to have been shorter than this part of the round trip: acknowledgements that come in
 * a bunch, or from a receiver that wants more than its share, would make the window as large as they like.
 */
#define TRAIN_SHARE 64
/* A handshake that was held up must not make the first burst as long. */
#define INITIAL_MAX 64u
/* Full windows must have been delivered for this many rounds before the rate they had counts. */
#define SETTLED_ROUNDS 3

struct train {
	u64 began_us; /* when its first acknowledgement arrived */
	u64 last_us;  /* when its last one so far did */
	u32 began_at; /* segments delivered by then */
	u32 length;   /* segments of the burst that are to be delivered; 0 when it is over */
};

struct sat {
	struct path path;
	struct train train;
	u32 rtt0_us;
	u32 window;       /* in segments */
	u32 threshold;    /* of slow start, in segments */
	u32 fraction;     /* of a segment */
	u32 lost;         /* in this round */
	u8 full_rounds;   /* since the window has reached the threshold */
	bool reduced;     /* in this round already */
};

/* Whether the rate that was seen says what the path can do: the window was not in its way. */
static __always_inline bool settled(struct sat *s)
{
	return s->full_rounds >= SETTLED_ROUNDS;
}

/*
 * Whether the window is in use: neither the application nor the receiver keeps more than a quarter of
 * it empty. In slow start half will do, for the window runs ahead.
 */
static __always_inline bool in_use(struct tcp_sock *tp, struct sat *s)
{
	if (s->window < s->threshold)
		return s->window < 2 * tp->max_packets_out;
	return 3 * s->window <= 4 * tp->max_packets_out;
}

static __always_inline void enter_round(struct sat *s, bool busy)
{
	s->reduced = 0;
	s->lost = 0;
	if (busy && s->window >= s->threshold && !settled(s))
		s->full_rounds++;
}

/*
 * Hoe's estimate: the first flight leaves as one burst, the bottleneck spaces it, and its
 * acknowledgements bring the spacing back. Rates over a whole round trip are of no use for it: in
 * slow start they only show the window of the round before.
 */
static __always_inline void note_train(struct tcp_sock *tp, struct sat *s)
{
	struct train *t = &s->train;
	u64 now = tp->tcp_mstamp;
	u64 took = now - t->began_us;
	u64 gap = now - t->last_us;
	u32 arrived = tp->delivered - t->began_at;
	u64 segments;

	if (!t->length)
		return;
	if (!t->began_us) {
		t->began_us = now;
		t->last_us = now;
		t->began_at = tp->delivered;
		t->length = min_u32(t->length, tp->packets_out);
		return;
	}
	/* Half of the time for one acknowledgement: it was delayed, or the burst is over. */
	if (took * 2 > s->path.least_rtt_us || (t->last_us != t->began_us && gap * 2 > took)) {
		t->length = 0;
		return;
	}
	t->last_us = now;
	if (arrived >= TRAIN_MIN) {
		took = max_u64(took, s->path.least_rtt_us / TRAIN_SHARE + 1);
		segments = min_u64((u64)arrived * s->path.least_rtt_us / took + 1, WINDOW_MAX);
		if (s->threshold == TCP_INFINITE_SSTHRESH || segments > s->threshold)
			s->threshold = segments;
	}
	if (arrived >= t->length)
		t->length = 0;
}

/* The first threshold, where the rate is stated: what the path holds. */
static __always_inline void state_threshold(struct sock *sk, struct sat *s)
{
	u64 rate = stated_rate(sk);
	u64 segments;

	if (!rate || !s->path.least_rtt_us || s->threshold != TCP_INFINITE_SSTHRESH)
		return;
	segments = segments_of(tcp_sk(sk), rate, s->path.least_rtt_us);
	s->threshold = max_u32(min_u64(segments, WINDOW_MAX), WINDOW_MIN);
}

/* Whether the losses that this acknowledgement shows, if any, are congestion. */
static __always_inline bool congested(struct sat *s, const struct rate_sample *rs)
{
	if (rs->losses <= 0)
		return 0;
	s->lost += rs->losses;
	return path_queues(&s->path) || s->lost >= max_u32(s->window / LOSS_SHARE, LOSS_MIN);
}

static __always_inline void reduce(struct sat *s)
{
	if (s->reduced)
		return;
	s->reduced = 1;
	s->full_rounds = SETTLED_ROUNDS;
	s->window = max_u32(s->window - (s->window >> 2), WINDOW_MIN);
	s->threshold = s->window;
}

static __always_inline void grow(struct sat *s, u32 acked)
{
	u32 rho_8 = rho_eighths(s->path.least_rtt_us << 3, s->rtt0_us);
	bool slow_start = s->window < s->threshold;
	u64 increment;

	if (slow_start) {
		increment = slow_start_increment(rho_8);
		if (s->threshold == TCP_INFINITE_SSTHRESH && increment > BLIND_INCREMENT)
			increment = BLIND_INCREMENT;
		increment = (increment << (FRACTION_BITS - 7)) * acked;
	} else if (settled(s)) {
		/* As avoidance_increment(), but nothing is lost in large windows. */
		increment = (u64)rho_8 * rho_8 * acked << (FRACTION_BITS - 6);
		increment /= s->window;
	} else {
		/* First see what comes of the threshold. */
		return;
	}
	increment += s->fraction;
	s->fraction = increment & (FRACTION_ONE - 1);
	increment = min_u64(increment >> FRACTION_BITS, WINDOW_MAX) + s->window;
	if (slow_start)
		increment = min_u64(increment, s->threshold);
	s->window = min_u64(increment, WINDOW_MAX);
}

static __always_inline u64 headroom(struct path *p)
{
	if (path_queues(p))
		return HEADROOM_QUEUED;
	return path_rises(p) ? HEADROOM_RISING : HEADROOM_FREE;
}

/* The most that may be in flight. */
static __always_inline u64 most(struct sock *sk, struct sat *s)
{
	u64 rate = stated_rate(sk);
	u64 seen = path_segments(&s->path);
	u64 bound = WINDOW_MAX;

	if (settled(s) && seen)
		bound = (seen * headroom(&s->path) >> 7) + WINDOW_MIN;
	if (rate && s->path.least_rtt_us)
		bound = min_u64(bound, (segments_of(tcp_sk(sk), rate, s->path.least_rtt_us) *
					HEADROOM_STATED >> 7) + WINDOW_MIN);
	return min_u64(bound, WINDOW_MAX);
}

/*
 * Spreads the window over the round trip. In slow start the stated rate, where there is one, holds
 * from the first segment on; else twice that of the window, as in the kernel.
 */
static __always_inline void pace(struct sock *sk, struct sat *s)
{
	u64 stated = stated_rate(sk);
	u64 rate = (u64)s->window * tcp_sk(sk)->mss_cache * 1000000;

	rate /= max_u32(s->path.least_rtt_us, 1);
	if (s->window >= s->threshold || settled(s))
		rate += rate >> 4;
	else if (stated)
		rate = stated;
	else if (s->train.length) /* the burst that is measured */
		rate = ~0ull;
	else
		rate *= 2;
	pace_at(sk, stated ? min_u64(rate, stated) : rate);
}

static __always_inline void apply(struct sock *sk, struct sat *s)
{
	u32 window;

	s->window = max_u32(min_u64(s->window, most(sk, s)), WINDOW_MIN);
	window = path_probes(&s->path) ? max_u32(s->window >> 1, WINDOW_MIN) : s->window;
	tcp_sk(sk)->snd_cwnd = window;
	pace(sk, s);
}

SEC("struct_ops")
void BPF_PROG(hybla_sat_init, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct sat *s = ca_state(sk);

	s->rtt0_us = rtt0_of(sk);
	path_init(tp, &s->path);
	s->window = min_u32(max_u32(rho_eighths(tp->srtt_us, s->rtt0_us) >> 3, 10), INITIAL_MAX);
	s->threshold = TCP_INFINITE_SSTHRESH;
	state_threshold(sk, s);
	if (s->threshold == TCP_INFINITE_SSTHRESH)
		s->train = (struct train){ .began_at = tp->delivered, .length = s->window };
	apply(sk, s);
}

CONG_CONTROL(hybla_sat_cong_control, struct sock *sk, const struct rate_sample *rs)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct sat *s = ca_state(sk);

	bool busy = in_use(tp, s);

	path_note_rtt(tp, &s->path, rs->rtt_us);
	path_note_rate(tp, &s->path, rs, busy);
	if (s->path.round_began)
		enter_round(s, busy);
	note_train(tp, s);
	state_threshold(sk, s);
	if (congested(s, rs))
		reduce(s);
	else if (s->threshold == TCP_INFINITE_SSTHRESH && path_queues(&s->path))
		reduce(s); /* the end of a blind start */
	else if (busy)
		grow(s, rs->acked_sacked);
	apply(sk, s);
}

SEC("struct_ops")
void BPF_PROG(hybla_sat_set_state, struct sock *sk, u8 state)
{
	struct sat *s = ca_state(sk);

	/* Explicit congestion notification, and drops in this machine's own queues. */
	if (state == TCP_CA_CWR)
		reduce(s);
	/* Silence: what was seen before it says little of what comes after. */
	if (state == TCP_CA_Loss) {
		if (path_queues(&s->path))
			reduce(s);
		s->full_rounds = 0;
		s->threshold = s->window;
	}
}

SEC("struct_ops")
u32 BPF_PROG(hybla_sat_ssthresh, struct sock *sk)
{
	struct sat *s = ca_state(sk);

	return max_u32(s->window, 2);
}

SEC("struct_ops")
u32 BPF_PROG(hybla_sat_undo_cwnd, struct sock *sk)
{
	struct sat *s = ca_state(sk);

	return max_u32(s->window, 2);
}

/* In windows: a segment that is lost twice keeps three windows behind it waiting. */
SEC("struct_ops")
u32 BPF_PROG(hybla_sat_sndbuf_expand, struct sock *sk)
{
	return 5;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops pepd_hybla_sat = {
	.init = (void *)hybla_sat_init,
	.cong_control = (void *)hybla_sat_cong_control,
	.set_state = (void *)hybla_sat_set_state,
	.ssthresh = (void *)hybla_sat_ssthresh,
	.undo_cwnd = (void *)hybla_sat_undo_cwnd,
	.sndbuf_expand = (void *)hybla_sat_sndbuf_expand,
	.name = "hybla_sat",
};
