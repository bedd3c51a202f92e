// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
/*
 * Hybla for satellite links, with its authors' recommendations that the kernel's module lacks.
 *
 * Caini and Firrincieli (2004) ask for pacing and for a first slow start threshold from Hoe's
 * estimate of the path's bandwidth-delay product (Hoe, SIGCOMM 1996). On top of that:
 *
 * - Increments are multiplied by the segments that an acknowledgement covers, so that stretch
 *   acknowledgements do not slow growth (RFC 3465 does so for the standard increments).
 * - The window is bounded by the rate in SO_MAX_PACING_RATE and by the measured delivery rate,
 *   times the round trip without a queue: 2^rho - 1 would put ten thousand segments into a queue
 *   in half a second. Delay added by a busy return path is filled too.
 * - A loss without a queue is the link's and leaves the window unchanged. A loss with a queue, or a
 *   high loss rate, is congestion and reduces the window by a quarter, at most once per round trip.
 * - A queue that does not drain although the window leaves no room for it belongs to other flows.
 *   The window is then CUBIC's (RFC 9438), to get a share of the link.
 *
 * The program's window also applies in recovery (cong_control), not proportional rate reduction.
 */
#include "cong_control.h"
#include "path.h"
#include "rtt0.h"

/*
 * Bounds of the window, in 1/128 of a bandwidth-delay product. By the stated rate: room for
 * jitter. By the measured rate: room to find a higher one, less where a queue stands already,
 * more while each sample is higher than the one before.
 */
#define HEADROOM_STATED 134
#define HEADROOM_QUEUED 144
#define HEADROOM_FREE 160
#define HEADROOM_RISING 192
/*
 * The time without acknowledgements before sending stops: on a short path a burst of losses is
 * longer than a round trip, and only later segments reveal the losses.
 */
#define LULL_US 25000u
/* The fractional part of the window, in segments. */
#define FRACTION_BITS 16
#define FRACTION_ONE (1u << FRACTION_BITS)
/* Windows below this are not halved. */
#define WINDOW_MIN 4u
/*
 * A loss above a fifth is congestion even without a queue: a policer, or a queue that other
 * flows have kept full since before the flow began. Measured over four windows, and this minimum
 * of segments: a radio link loses whole windows in one burst.
 */
#define LOSS_ONE (1u << 20)
#define LOSS_SHARE (LOSS_ONE / 5)
#define LOSS_SEGMENTS 256u
/* In 1/128 of a segment: before any measurement of the path, the window doubles per round trip. */
#define BLIND_INCREMENT 128
/* A train of fewer segments is too short to measure the path's rate. */
#define TRAIN_MIN 4u
/*
 * The minimum duration of a train, as a part of the round trip. Bunched acknowledgements, or
 * those of a greedy receiver, would otherwise inflate the window without limit.
 */
#define TRAIN_SHARE 64
/* A delayed handshake must not make the first burst as long. */
#define INITIAL_MAX 64u
/* Rounds of full windows before the delivery rate counts. */
#define SETTLED_ROUNDS 3
/*
 * Rounds with a queue after which the window leaves no room for one; rounds after which the queue
 * belongs to other flows.
 */
#define YIELD_ROUNDS 3
#define RIVAL_ROUNDS 5
/* Rounds without a queue until other flows may have ended; and until a loss is not theirs. */
#define CALM_ROUNDS 8
#define LOSS_CALM_ROUNDS 2

struct train {
	u32 began_us; /* time of its first acknowledgement */
	u32 last_us;  /* time of its last one so far */
	u32 began_at; /* segments delivered by then */
	u32 length;   /* segments of the burst to be delivered; 0 when it is over */
};

/* The window that CUBIC would have (RFC 9438). */
struct rival {
	u32 most;     /* the window at the last loss */
	u32 began_ms; /* start of its growth */
	u32 bend_ms;  /* time until it is at `most` again */
	union {
		u32 least; /* initial value */
		u32 alone; /* without rivals: the drain rate of the flow's own queue, or 0 */
	};
};

struct sat {
	struct path path;
	union {
		struct train train; /* initially */
		struct rival rival;
	};
	u32 rtt0_us;
	u32 window;       /* in segments */
	u32 threshold;    /* of slow start, in segments */
	u32 fraction;     /* of a segment */
	u32 lost;         /* recent share, of LOSS_ONE */
	u8 full_rounds;   /* since the window reached the threshold */
	u8 queued_rounds; /* in succession that ended with a queue although the window yielded */
	u8 calm_rounds;   /* in succession that ended without a queue */
	u8 reduced : 2;   /* rounds in which a loss still belongs to the same congestion */
	bool rivals : 1;  /* other flows fill the queue */
	bool started : 1; /* the first flight is over, and `rival` counts */
	bool woken : 1;   /* this acknowledgement ends a silence */
};

_Static_assert(sizeof(struct sat) <= 104, "more than icsk_ca_priv has");

/* True if the measured rate shows the path's capacity: the window did not limit it. */
static __always_inline bool settled(struct sat *s)
{
	return s->full_rounds >= SETTLED_ROUNDS;
}

/*
 * True if the window is in use: neither the application nor the receiver leaves more than a
 * quarter of it empty. In slow start half suffices, because the window runs ahead.
 */
static __always_inline bool in_use(struct tcp_sock *tp, struct sat *s)
{
	if (s->window < s->threshold)
		return s->window < 2 * tp->max_packets_out;
	return 3 * s->window <= 4 * tp->max_packets_out;
}

/* The cube root of up to 2^46, by Newton's method from above. */
static __noinline u32 cube_root(u64 of)
{
	u64 root = 40000;

#pragma unroll
	for (int i = 0; i < 16; i++)
		root = (2 * root + of / (root * root)) / 3 + 1;
	return root;
}

/* CUBIC's window from `least`, with its bend at `most`. */
static __noinline void rival_begin(struct tcp_sock *tp, struct sat *s, u32 least, u32 most)
{
	s->rival.least = least;
	s->rival.most = max_u32(most, least);
	s->rival.began_ms = now_ms(tp);
	/* K = cbrt(drop / 0.4), in s. */
	s->rival.bend_ms = cube_root((u64)(s->rival.most - least) * 2500000000);
}

/* CUBIC's window now. */
static __always_inline u64 rival_window(struct tcp_sock *tp, struct sat *s)
{
	struct rival *r = &s->rival;
	u64 rtt = max_u32(tp->srtt_us >> 3, 1);
	/* Only after the losses, a round trip after they were detected. */
	u64 passed = max_u64(min_u32(now_ms(tp) - r->began_ms, 200000), rtt / 1000) - rtt / 1000;
	u64 took = passed + s->path.least_rtt_us / 1000;
	u64 beyond = took > r->bend_ms ? took - r->bend_ms : r->bend_ms - took;
	u64 cube = beyond * beyond * beyond / 2500000000;
	/* Like Reno with this decrease: 0.53 segments per round trip. */
	u64 linear = r->least + passed * 530 / rtt;
	u64 window = took > r->bend_ms ? r->most + cube : r->most - min_u64(cube, r->most);

	return min_u64(max_u64(window, linear), WINDOW_MAX);
}

/* Ends the first flight: from here on there may be rivals. */
static __always_inline void start(struct sat *s)
{
	if (!s->started)
		s->rival = (struct rival){};
	s->started = 1;
}

static __always_inline void end_rivals(struct sat *s)
{
	s->rivals = 0;
	s->queued_rounds = 0;
	s->rival = (struct rival){};
}

/*
 * Decides whether the queue is the flow's own. A lone window without room for a queue drains it
 * within two rounds, at the link's rate. A queue that stays longer is filled by other flows, which
 * would leave this one next to nothing.
 */
static __always_inline void note_rivals(struct tcp_sock *tp, struct sat *s)
{
	bool queue = path_queues(&s->path);
	struct rival *r = &s->rival;
	u32 most;

	s->calm_rounds = queue ? 0 : min_u32(s->calm_rounds + 1, 255);
	if (s->rivals) {
		/* Beyond the window at the last loss, without a queue: they have ended. */
		if (s->calm_rounds >= CALM_ROUNDS && now_ms(tp) - r->began_ms >= r->bend_ms)
			end_rivals(s);
		return;
	}
	if (!settled(s))
		return;
	start(s);
	if (!queue) {
		if (s->queued_rounds >= YIELD_ROUNDS)
			r->alone = path_rate(&s->path);
		s->queued_rounds = 0;
		return;
	}
	if (!s->queued_rounds)
		r->most = s->window;
	s->queued_rounds++;
	if (r->alone && s->path.rate >= r->alone - (r->alone >> 2))
		s->queued_rounds = min_u32(s->queued_rounds, YIELD_ROUNDS - 1);
	if (s->queued_rounds < RIVAL_ROUNDS)
		return;
	most = r->most;
	s->rivals = 1;
	rival_begin(tp, s, s->window, most);
}

static __always_inline void enter_round(struct tcp_sock *tp, struct sat *s, bool busy)
{
	note_rivals(tp, s);
	if (s->reduced)
		s->reduced--;
	if (busy && s->window >= s->threshold && !settled(s))
		s->full_rounds++;
}

/*
 * Hoe's estimate: the first flight leaves as one burst, the bottleneck spaces it, and its
 * acknowledgements keep the spacing. Rates over a whole round trip are useless for it: in slow
 * start they only show the window of the round before.
 */
static __always_inline void note_train(struct tcp_sock *tp, struct sat *s)
{
	struct train *t = &s->train;
	u32 now = tp->tcp_mstamp;
	u32 took = now - t->began_us;
	u32 gap = now - t->last_us;
	u32 arrived = tp->delivered - t->began_at;
	u64 segments;

	if (s->started || !t->length)
		return;
	if (!t->began_us) {
		t->began_us = now | !now;
		t->last_us = now;
		t->began_at = tp->delivered;
		t->length = min_u32(t->length, tp->packets_out);
		return;
	}
	/* Half of the time for one acknowledgement: it was delayed, or the burst is over. */
	if (took > s->path.least_rtt_us / 2 || (t->last_us != t->began_us && gap > took / 2)) {
		t->length = 0;
		return;
	}
	t->last_us = now;
	if (arrived >= TRAIN_MIN) {
		took = max_u32(took, s->path.least_rtt_us / TRAIN_SHARE + 1);
		segments = min_u64((u64)arrived * s->path.least_rtt_us / took + 1, WINDOW_MAX);
		if (s->threshold == TCP_INFINITE_SSTHRESH || segments > s->threshold)
			s->threshold = segments;
	}
	if (arrived >= t->length)
		t->length = 0;
}

/* The first threshold with a stated rate: the path's capacity. */
static __always_inline void state_threshold(struct sock *sk, struct sat *s)
{
	u64 rate = stated_rate(sk);
	u64 segments;

	if (!rate || !s->path.least_rtt_us || s->threshold != TCP_INFINITE_SSTHRESH)
		return;
	segments = segments_of(tcp_sk(sk), rate, s->path.least_rtt_us);
	s->threshold = max_u32(min_u64(segments, WINDOW_MAX), WINDOW_MIN);
}

/* Updates the loss share; returns whether the losses of this acknowledgement are congestion. */
static __always_inline bool congested(struct sat *s, const struct rate_sample *rs)
{
	u32 of = max_u32(4 * s->window, LOSS_SEGMENTS);
	u32 acked = min_u32(rs->acked_sacked, of);
	u32 losses = rs->losses > 0 ? min_u32(rs->losses, of) : 0;

	s->lost -= (u64)s->lost * acked / of;
	s->lost += (u64)(LOSS_ONE - s->lost) * losses / of;
	if (!losses)
		return 0;
	return path_queues(&s->path) || (s->rivals && s->calm_rounds <= LOSS_CALM_ROUNDS) ||
	       s->lost > LOSS_SHARE;
}

/* Reduces by a quarter; with a stated rate not below the path's capacity without its queue. */
static __noinline void reduce(struct tcp_sock *tp, struct sat *s)
{
	u32 less = s->window - (s->window >> 2);

	if (s->reduced)
		return;
	start(s);
	s->reduced = 1;
	if (s->rivals) {
		/* CUBIC keeps 0.7 of it, but a paced flow meets a full buffer less often. */
		less = max_u32((u64)s->window * 3 / 5, WINDOW_MIN);
		rival_begin(tp, s, less, s->window < s->rival.most ? (u64)s->window * 17 / 20 : s->window);
		s->reduced = 2;
	} else if (stated_rate((struct sock *)tp) && path_queues(&s->path) && settled(s) &&
		   s->lost <= LOSS_SHARE) {
		less = max_u64(less, min_u64(path_holds(&s->path, s->path.rate), s->window));
	}
	s->lost = 0;
	s->full_rounds = SETTLED_ROUNDS;
	s->window = max_u32(less, WINDOW_MIN);
	s->threshold = s->window;
}

static __always_inline void grow(struct sock *sk, struct sat *s, u32 acked)
{
	u32 rho_8 = rho_eighths(s->path.least_rtt_us << 3, s->rtt0_us);
	bool slow_start = s->window < s->threshold;
	u64 increment;

	if (s->rivals) {
		increment = max_u64(rival_window(tcp_sk(sk), s), s->window) - s->window;
		s->window += min_u64(increment, (acked + 1) >> 1);
		return;
	}
	if (slow_start) {
		increment = slow_start_increment(rho_8);
		if (s->threshold == TCP_INFINITE_SSTHRESH && increment > BLIND_INCREMENT)
			increment = BLIND_INCREMENT;
		increment = (increment << (FRACTION_BITS - 7)) * acked;
	} else if (settled(s)) {
		/* As avoidance_increment(), but without losses in large windows. */
		increment = (u64)rho_8 * rho_8 * acked << (FRACTION_BITS - 6);
		increment /= s->window;
		/* The stated rate may be outdated: most() needs measurements for each step. */
		if (stated_rate(sk) && !path_queues(&s->path))
			increment = max_u64(increment, (u64)acked << (FRACTION_BITS - 1));
	} else {
		/* First see the effect of the threshold. */
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
	return path_rises(p) ? HEADROOM_RISING : HEADROOM_FREE;
}

/* A round trip and a part of it in 1/128, but no less than a lull. */
static __always_inline u64 widened(u32 span_us, u32 headroom)
{
	return max_u64((u64)span_us * headroom >> 7, (u64)span_us + LULL_US);
}

/* The maximum in flight. */
static __always_inline u64 most(struct sock *sk, struct sat *s)
{
	struct path *p = &s->path;
	u32 span = path_span_us(p);
	u64 rate = stated_rate(sk);
	u32 seen = path_rate(p);
	u64 bound = WINDOW_MAX;

	if (s->rivals) {
		/* With room for a part of their queue. */
		span += p->rtt_us > p->least_rtt_us ? p->rtt_us - p->least_rtt_us : 0;
	} else if (settled(s) && seen) {
		bound = segments_in(seen, widened(span, headroom(p))) + WINDOW_MIN;
		/* The delivery rate while a queue stands is the path's present capacity. */
		if (path_queues(p) && s->queued_rounds < YIELD_ROUNDS)
			bound = min_u64(bound, (path_holds(p, p->rate) * HEADROOM_QUEUED >> 7) + WINDOW_MIN);
		else if (s->queued_rounds >= YIELD_ROUNDS)
			bound = min_u64(bound, path_holds(p, path_queues(p) ? p->rate : seen) + 1);
	}
	if (rate && p->least_rtt_us)
		bound = min_u64(bound, segments_of(tcp_sk(sk), rate,
						   min_u64(widened(span, HEADROOM_STATED), 0xffffffffu)) +
						   WINDOW_MIN);
	return min_u64(bound, WINDOW_MAX);
}

/*
 * Paces the window over the round trip. In slow start the stated rate, if any, applies from the
 * first segment on; else twice the window's, as in the kernel.
 */
static __always_inline void pace(struct sock *sk, struct sat *s)
{
	u64 stated = stated_rate(sk);
	u64 rate = (u64)s->window * tcp_sk(sk)->mss_cache * 1000000;

	rate /= max_u32(path_span_us(&s->path), 1);
	if (s->window >= s->threshold || settled(s))
		rate += rate >> 4;
	else if (stated)
		rate = stated;
	else if (!s->started && s->train.length) /* the burst that is measured */
		rate = ~0ull;
	else
		rate *= 2;
	pace_at(sk, stated ? min_u64(rate, stated) : rate);
}

static __always_inline void apply(struct sock *sk, struct sat *s)
{
	u32 window;

	s->window = max_u32(min_u64(s->window, most(sk, s)), WINDOW_MIN);
	window = s->window;
	if (path_probes(&s->path))
		window = min_u64(window, path_holds(&s->path, path_rate(&s->path)));
	window = max_u32(window, WINDOW_MIN);
	if (s->woken)
		window = waking_window(tcp_sk(sk), window, s->path.least_rtt_us);
	s->woken = 0;
	tcp_sk(sk)->snd_cwnd = window;
	pace(sk, s);
}

SEC("struct_ops")
void BPF_PROG(hybla_sat_init, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct sat *s = ca_state(sk);

	state_rto_min(sk);
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

	s->woken |= is_stalled(tp, rs, s->path.least_rtt_us);
	/* The sample of a woken connection contains the outage. */
	if (!s->woken)
		path_note_rtt(tp, &s->path, rs->rtt_us, 2);
	if (s->path.clear && s->rivals)
		end_rivals(s);
	path_note_rate(tp, &s->path, rs, busy);
	if (s->path.round_began)
		enter_round(tp, s, busy);
	note_train(tp, s);
	state_threshold(sk, s);
	if (congested(s, rs))
		reduce(tp, s);
	else if (s->threshold == TCP_INFINITE_SSTHRESH && path_queues(&s->path))
		reduce(tp, s); /* the end of a blind start */
	else if (busy)
		grow(sk, s, rs->acked_sacked);
	apply(sk, s);
}

SEC("struct_ops")
void BPF_PROG(hybla_sat_set_state, struct sock *sk, u8 state)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct sat *s = ca_state(sk);

	/* ECN, and drops in this machine's own queues. */
	if (state == TCP_CA_CWR)
		reduce(tp, s);
	/* After silence earlier measurements are outdated. */
	if (state == TCP_CA_Loss) {
		if (path_queues(&s->path))
			reduce(tp, s);
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

	s->woken = in_timeout(sk);
	return max_u32(s->window, 2);
}

/* In windows: a segment that is lost twice blocks three windows behind it. */
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
