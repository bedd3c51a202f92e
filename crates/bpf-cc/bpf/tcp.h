/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only */
/*
 * Types of the kernel that pepd's congestion controls use, and small helpers.
 *
 * Only the fields that are read or written are declared. Where they really are in the running
 * kernel's structures is found out when a program is loaded (CO-RE), from the kernel's BTF.
 */
#ifndef PEPD_BPF_TCP_H
#define PEPD_BPF_TCP_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed int __s32;
typedef signed long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
typedef _Bool bool;

enum bpf_map_type { BPF_MAP_TYPE_SK_STORAGE = 24 };
enum { BPF_F_NO_PREALLOC = 1, BPF_F_CLONE = 512 };
enum { SOL_TCP = 6, TCP_BPF_RTO_MIN = 1004 };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock {
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	u32 sk_pacing_status;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	u8 icsk_ca_state : 5;
	u64 icsk_ca_priv[13];
};

struct tcp_options_received {
	u32 rcv_tsval; /* of the last packet; 0 where there are no time stamps */
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 snd_cwnd;
	u32 snd_ssthresh;
	u32 snd_cwnd_cnt;
	u32 srtt_us;
	u32 mss_cache;
	u32 max_packets_out;
	u32 packets_out;
	u32 retrans_out;
	u32 sacked_out;
	u32 lost_out;
	u32 delivered;
	u32 snd_nxt;
	u32 snd_una;
	u64 tcp_mstamp;
	u64 delivered_mstamp; /* of the last acknowledgement that acknowledged something */
	struct tcp_options_received rx_opt;
	u8 is_cwnd_limited : 1;
};

struct ack_sample {
	u32 pkts_acked;
	s32 rtt_us;
	u32 in_flight;
};

struct rate_sample {
	u32 prior_delivered;
	s32 delivered;
	long interval_us;
	long rtt_us;
	int losses;
	u32 acked_sacked;
};

#pragma clang attribute pop

enum tcp_ca_event {
	CA_EVENT_TX_START,
	CA_EVENT_CWND_RESTART,
	CA_EVENT_COMPLETE_CWR,
	CA_EVENT_LOSS,
};

/* The members that the controls set; libbpf finds their places by name. */
struct tcp_congestion_ops {
	u32 (*ssthresh)(struct sock *);
	void (*cong_avoid)(struct sock *, u32, u32);
	void (*set_state)(struct sock *, u8);
	void (*cwnd_event)(struct sock *, enum tcp_ca_event);
	void (*pkts_acked)(struct sock *, const struct ack_sample *);
	void (*cong_control)(struct sock *, u32, int, const struct rate_sample *);
	u32 (*undo_cwnd)(struct sock *);
	u32 (*sndbuf_expand)(struct sock *);
	char name[16];
	void (*init)(struct sock *);
};

enum tcp_ca_state { TCP_CA_Open, TCP_CA_Disorder, TCP_CA_CWR, TCP_CA_Recovery, TCP_CA_Loss };
enum sk_pacing { SK_PACING_NONE, SK_PACING_NEEDED };

/* A slow start threshold that was never set. */
#define TCP_INFINITE_SSTHRESH 0x7fffffff
/* No window goes beyond it, as with the kernel's own Hybla. */
#define WINDOW_MAX 65535u

extern u32 tcp_slow_start(struct tcp_sock *tp, u32 acked) __ksym;
extern void tcp_cong_avoid_ai(struct tcp_sock *tp, u32 w, u32 acked) __ksym;
extern u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;
extern void tcp_reno_cong_avoid(struct sock *sk, u32 ack, u32 acked) __ksym;

/* Programs run in the kernel under its licence; the sources have other licences as well. */
char _license[] SEC("license") = "Dual MIT/GPL";

static __always_inline struct tcp_sock *tcp_sk(struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

/* A control's own state in the socket: 104 bytes, zeroed before init. */
static __always_inline void *ca_state(struct sock *sk)
{
	return (void *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

static __always_inline u32 min_u32(u32 a, u32 b)
{
	return a < b ? a : b;
}

static __always_inline u32 max_u32(u32 a, u32 b)
{
	return a > b ? a : b;
}

static __always_inline u64 max_u64(u64 a, u64 b)
{
	return a > b ? a : b;
}

static __always_inline u64 min_u64(u64 a, u64 b)
{
	return a < b ? a : b;
}

/* A mean of which a new sample is one part in `parts`. */
static __always_inline u32 mean_u32(u32 mean, u32 sample, u32 parts)
{
	return sample > mean ? mean + (sample - mean) / parts : mean - (mean - sample) / parts;
}

/* Whether sequence or delivery count a lies before b; both wrap. */
static __always_inline bool before(u32 a, u32 b)
{
	return (s32)(a - b) < 0;
}

/*
 * Whether the window, not the application, keeps the sender from sending more, so that it may
 * grow (RFC 7661 says why it must not otherwise).
 */
static __always_inline bool window_limits(struct tcp_sock *tp)
{
	if (BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited))
		return 1;
	return tp->snd_cwnd < tp->snd_ssthresh && tp->snd_cwnd < 2 * tp->max_packets_out;
}

/* Segments beyond those in flight that a woken connection sends. */
#define WAKE_SEGMENTS 4
/*
 * Round trips below this are about as short as the kernel's wait for a larger segment to send
 * (tcp_tso_should_defer), which ends only with a third of the window free.
 */
#define WAKE_SHORT_US 2000u

/* Whether the kernel waits for the retransmission timer. */
static __always_inline bool in_timeout(struct sock *sk)
{
	struct inet_connection_sock *icsk = (void *)sk;

	return BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state) == TCP_CA_Loss;
}

/*
 * The window for a connection whose timeout the kernel takes for spurious (RFC 3522). After an
 * outage the first acknowledgement covers segments that arrived before it, so the kernel takes all
 * later ones for still in flight, and would wait for its timer again. New segments are answered
 * with SACK blocks within a round trip, which prove the others lost (RFC 8985).
 */
static __always_inline u32 waking_window(struct tcp_sock *tp, u32 window, u32 rtt_us)
{
	u32 in_flight = tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
	u32 room = WAKE_SEGMENTS + (rtt_us < WAKE_SHORT_US ? in_flight >> 1 : 0);

	/* However many answers arrive before one acknowledges anything. */
	u64 bound = min_u64(2 * (u64)window + WAKE_SEGMENTS, WINDOW_MAX);

	return max_u32(window, min_u64((u64)in_flight + room, bound));
}

/* Silence beyond two round trips after which an answer to a probe wakes a connection. */
#define STALL_US 25000u

/*
 * Whether an acknowledgement that acknowledges nothing ends a silence: it answers a probe of pepd's
 * over a link that was down. Everything in flight may be lost, and no timer may be near.
 */
static __always_inline bool is_stalled(struct tcp_sock *tp, const struct rate_sample *rs, u32 rtt_us)
{
	u64 silence = tp->tcp_mstamp - tp->delivered_mstamp;

	return !rs->acked_sacked && tp->packets_out && silence > 2 * (u64)rtt_us + STALL_US;
}

static __always_inline void pace_at(struct sock *sk, u64 bytes_per_second)
{
	/* At a rate of 0 nothing would ever leave. */
	sk->sk_pacing_rate = bytes_per_second ? bytes_per_second : 1;
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
}

/* More than any link, and what can be multiplied by a quarter of an hour in us. */
#define RATE_MAX (1ull << 34)

/* SO_MAX_PACING_RATE in bytes of payload per second; 0 where it is not set. */
static __always_inline u64 stated_rate(struct sock *sk)
{
	u64 rate = sk->sk_max_pacing_rate;

	return rate == ~0ull ? 0 : min_u64(rate, RATE_MAX);
}

/* Segments in flight that keep `rate` bytes per second busy for `rtt_us`. */
static __always_inline u64 segments_of(struct tcp_sock *tp, u64 rate, u32 rtt_us)
{
	u64 mss = tp->mss_cache ? tp->mss_cache : 1448;

	return rate * rtt_us / 1000000 / mss;
}

#endif
