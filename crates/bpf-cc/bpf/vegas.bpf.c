// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
/*
 * TCP Vegas as in the kernel's module: once per round trip the window moves by a segment, to keep
 * two to four segments in queues.
 *
 * Brakmo and Peterson, "TCP Vegas: end to end congestion avoidance on a global internet", IEEE
 * Journal on Selected Areas in Communications 13 (1995).
 */
#include "delay.h"

#define ALPHA 2u
#define BETA 4u
#define GAMMA 1u

static __always_inline void end_slow_start(struct tcp_sock *tp, u32 window)
{
	tp->snd_ssthresh = min_u32(tp->snd_ssthresh, window - 1);
}

static __always_inline void adjust(struct tcp_sock *tp, struct delay *d, u32 acked)
{
	u32 window = max_u32(tp->snd_cwnd, 1);
	u32 queued = delay_queued(d, window);
	u32 target = (u64)window * d->base_rtt_us / max_u32(d->least_rtt_us, 1);

	if (window < tp->snd_ssthresh) {
		if (queued <= GAMMA) {
			tcp_slow_start(tp, acked);
			return;
		}
		window = min_u32(window, target + 1);
		end_slow_start(tp, window);
	} else if (queued > BETA) {
		window--;
		end_slow_start(tp, window);
	} else if (queued < ALPHA) {
		window++;
	}
	tp->snd_cwnd = min_u32(max_u32(window, 2), WINDOW_MAX);
	/* As tcp_current_ssthresh() outside of recovery. */
	tp->snd_ssthresh = max_u32(tp->snd_ssthresh, (tp->snd_cwnd >> 1) + (tp->snd_cwnd >> 2));
}

SEC("struct_ops")
void BPF_PROG(vegas_init, struct sock *sk)
{
	delay_init(tcp_sk(sk), ca_state(sk));
}

SEC("struct_ops")
void BPF_PROG(vegas_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	delay_note(ca_state(sk), sample->rtt_us);
}

SEC("struct_ops")
void BPF_PROG(vegas_set_state, struct sock *sk, u8 state)
{
	delay_set_state(tcp_sk(sk), ca_state(sk), state);
}

SEC("struct_ops")
void BPF_PROG(vegas_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	delay_event(tcp_sk(sk), ca_state(sk), event);
}

SEC("struct_ops")
void BPF_PROG(vegas_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct delay *d = ca_state(sk);

	if (!d->watched) {
		tcp_reno_cong_avoid(sk, ack, acked);
		return;
	}
	if (!before(d->ends, ack)) {
		if (tp->snd_cwnd < tp->snd_ssthresh)
			tcp_slow_start(tp, acked);
		return;
	}
	if (d->samples < SAMPLES_MIN)
		tcp_reno_cong_avoid(sk, ack, acked);
	else
		adjust(tp, d, acked);
	delay_begin(tp, d);
}

SEC("struct_ops")
u32 BPF_PROG(vegas_ssthresh, struct sock *sk)
{
	return tcp_reno_ssthresh(sk);
}

SEC("struct_ops")
u32 BPF_PROG(vegas_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops pepd_vegas = {
	.init = (void *)vegas_init,
	.pkts_acked = (void *)vegas_pkts_acked,
	.set_state = (void *)vegas_set_state,
	.cwnd_event = (void *)vegas_cwnd_event,
	.cong_avoid = (void *)vegas_cong_avoid,
	.ssthresh = (void *)vegas_ssthresh,
	.undo_cwnd = (void *)vegas_undo_cwnd,
	.name = "vegas",
};
