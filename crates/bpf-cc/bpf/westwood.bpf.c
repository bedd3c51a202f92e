// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
/*
 * TCP Westwood+ as in the kernel's module: Reno, but the window after a loss is the measured rate
 * times the minimum round trip.
 *
 * Mascolo, Casetti, Gerla, Sanadidi and Wang, "TCP Westwood", MobiCom 2001; Grieco and Mascolo,
 * "Performance evaluation of Westwood+", 2004.
 */
#include "tcp.h"

/* The minimum interval of a rate sample, which else is a round trip. */
#define SAMPLE_MIN_US 50000u
#define RATE_SHIFT 8

struct westwood {
	u64 sample_began_us;
	u32 sample_began_at; /* segments delivered by then */
	u32 rtt_us;
	u32 least_rtt_us;
	u64 once;  /* the rate filtered once, in segments per second times 256 */
	u64 twice; /* and twice */
	bool forgets; /* the minimum round trip is reset with the next sample */
};

static __always_inline void begin_sample(struct tcp_sock *tp, struct westwood *w)
{
	w->sample_began_us = tp->tcp_mstamp;
	w->sample_began_at = tp->delivered;
}

/* A low-pass filter of weight 1/8, twice. */
static __always_inline void filter(struct westwood *w, u64 rate)
{
	if (!w->once && !w->twice) {
		w->once = rate;
		w->twice = rate;
		return;
	}
	w->once = (7 * w->once + rate) >> 3;
	w->twice = (7 * w->twice + w->once) >> 3;
}

static __always_inline void sample_rate(struct tcp_sock *tp, struct westwood *w)
{
	u64 took = tp->tcp_mstamp - w->sample_began_us;
	u32 arrived = tp->delivered - w->sample_began_at;

	if (!w->rtt_us || took <= max_u32(w->rtt_us, SAMPLE_MIN_US))
		return;
	filter(w, ((u64)arrived << RATE_SHIFT) * 1000000 / took);
	begin_sample(tp, w);
}

static __always_inline u32 window_of_rate(struct westwood *w)
{
	u64 segments = (w->twice * w->least_rtt_us / 1000000) >> RATE_SHIFT;

	return max_u32(min_u64(segments, WINDOW_MAX), 2);
}

SEC("struct_ops")
void BPF_PROG(westwood_init, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct westwood *w = ca_state(sk);

	w->once = 0;
	w->twice = 0;
	w->rtt_us = tp->srtt_us >> 3;
	w->least_rtt_us = w->rtt_us;
	w->forgets = 0;
	begin_sample(tp, w);
}

SEC("struct_ops")
void BPF_PROG(westwood_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct westwood *w = ca_state(sk);

	if (sample->rtt_us > 0) {
		w->rtt_us = sample->rtt_us;
		if (w->forgets || !w->least_rtt_us || w->rtt_us < w->least_rtt_us)
			w->least_rtt_us = w->rtt_us;
		w->forgets = 0;
	}
	sample_rate(tcp_sk(sk), w);
}

SEC("struct_ops")
void BPF_PROG(westwood_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct westwood *w = ca_state(sk);

	if (event == CA_EVENT_COMPLETE_CWR) {
		tp->snd_ssthresh = window_of_rate(w);
		tp->snd_cwnd = tp->snd_ssthresh;
	} else if (event == CA_EVENT_LOSS) {
		tp->snd_ssthresh = window_of_rate(w);
		w->forgets = 1;
	}
}

SEC("struct_ops")
void BPF_PROG(westwood_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
u32 BPF_PROG(westwood_ssthresh, struct sock *sk)
{
	return tcp_reno_ssthresh(sk);
}

SEC("struct_ops")
u32 BPF_PROG(westwood_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops pepd_westwood = {
	.init = (void *)westwood_init,
	.pkts_acked = (void *)westwood_pkts_acked,
	.cwnd_event = (void *)westwood_cwnd_event,
	.cong_avoid = (void *)westwood_cong_avoid,
	.ssthresh = (void *)westwood_ssthresh,
	.undo_cwnd = (void *)westwood_undo_cwnd,
	.name = "westwood",
};
