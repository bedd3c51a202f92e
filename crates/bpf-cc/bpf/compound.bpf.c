// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
/*
 * Compound TCP: Reno's window plus a second one that grows fast while there is no queue and
 * yields to delay.
 *
 * Tan, Song, Zhang and Sridharan, "A compound TCP approach for high-speed and long distance
 * networks", INFOCOM 2006, with its parameters: alpha 1/8, beta 1/2, k 3/4, gamma 30, zeta 1.
 */
#include "delay.h"

#define GAMMA 30u

struct compound {
	struct delay delay;
	u32 extra; /* the delay window; the rest of snd_cwnd is Reno's */
};

/*
 * The square root of a number below 2^32, to one. Newton's method has a fixed number of steps
 * here: the kernel's verifier follows both branches of every condition.
 */
static __always_inline u32 root(u32 n)
{
	u64 result = 1 << 16;
	u32 step;

#pragma unroll
	for (step = 0; step < 20; step++)
		result = (result + n / (result | 1)) >> 1;
	return result;
}

/* window^(3/4) / 8 - 1: the increment of a round trip without a queue. */
static __always_inline u32 step(u32 window)
{
	/* Twelve bits of fraction under the first root leave six under the second. */
	u64 half = root(min_u32(window, WINDOW_MAX) << 12);
	u64 quarter = root((u32)half << 6);
	u32 power = (half * quarter) >> 12;

	return power >= 16 ? (power >> 3) - 1 : 0;
}

static __always_inline void adjust(struct tcp_sock *tp, struct compound *c)
{
	u32 window = max_u32(tp->snd_cwnd, 2);
	u32 queued = delay_queued(&c->delay, window);
	u32 extra = min_u32(c->extra, window - 2);

	window -= extra;
	if (queued < GAMMA)
		extra += step(window + extra);
	else
		extra = extra > queued ? extra - queued : 0;
	c->extra = extra;
	tp->snd_cwnd = min_u32(window + extra, WINDOW_MAX);
}

SEC("struct_ops")
void BPF_PROG(compound_init, struct sock *sk)
{
	struct compound *c = ca_state(sk);

	c->extra = 0;
	delay_init(tcp_sk(sk), &c->delay);
}

SEC("struct_ops")
void BPF_PROG(compound_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct compound *c = ca_state(sk);

	delay_note(&c->delay, sample->rtt_us);
}

SEC("struct_ops")
void BPF_PROG(compound_set_state, struct sock *sk, u8 state)
{
	struct compound *c = ca_state(sk);

	delay_set_state(tcp_sk(sk), &c->delay, state);
	/* After a timeout Reno restarts, alone. */
	if (state == TCP_CA_Loss)
		c->extra = 0;
}

SEC("struct_ops")
void BPF_PROG(compound_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	struct compound *c = ca_state(sk);

	delay_event(tcp_sk(sk), &c->delay, event);
}

SEC("struct_ops")
void BPF_PROG(compound_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct compound *c = ca_state(sk);

	/* Relative to the sum of both, so that the sum still grows by one (section III.A). */
	tcp_reno_cong_avoid(sk, ack, acked);
	if (!c->delay.watched || !before(c->delay.ends, ack))
		return;
	if (c->delay.samples >= SAMPLES_MIN && tp->snd_cwnd >= tp->snd_ssthresh && window_limits(tp))
		adjust(tp, c);
	delay_begin(tp, &c->delay);
}

/* Halves the sum of both windows, and each of them. */
SEC("struct_ops")
u32 BPF_PROG(compound_ssthresh, struct sock *sk)
{
	struct compound *c = ca_state(sk);

	c->extra >>= 1;
	return tcp_reno_ssthresh(sk);
}

SEC("struct_ops")
u32 BPF_PROG(compound_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops pepd_compound = {
	.init = (void *)compound_init,
	.pkts_acked = (void *)compound_pkts_acked,
	.set_state = (void *)compound_set_state,
	.cwnd_event = (void *)compound_cwnd_event,
	.cong_avoid = (void *)compound_cong_avoid,
	.ssthresh = (void *)compound_ssthresh,
	.undo_cwnd = (void *)compound_undo_cwnd,
	.name = "compound",
};
