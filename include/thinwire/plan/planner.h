// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "thinwire/core/dtype.h"
#include "thinwire/optim/run_length.h"

/// What a way to average costs, before a run has paid for it: time, bytes,
/// messages and memory, by formulas. Local; nothing is measured here.
/// docs/guide/plan.md describes the model.
namespace thinwire::plan {

/// What ranks are connected by. All hosts hold equally many.
struct Network {
  int ranks = 1;           ///< W, >= 1.
  int ranks_per_host = 1;  ///< G, divides `ranks`.
  double gbps = 10;        ///< Of a host's network card, each direction.
  double latency_seconds = 50e-6;  ///< Of one collective between hosts.
  /// Of the communication thread, to send one message and receive another.
  double message_seconds = 5e-6;
  double inner_bytes_per_second = 10e9;  ///< Of one rank, inside its host.
  double inner_latency_seconds = 5e-6;
  double inner_message_seconds = 1e-6;
  /// What communication takes of a processor, per byte that a rank sends while
  /// it gets as many: between hosts, and inside one.
  double processor_seconds_per_byte = 0;
  double inner_processor_seconds_per_byte = 0;
  /// `gbps` is what the cable carries, headers of Ethernet, IP and TCP
  /// included; otherwise what is left for the payload, as a measurement says.
  bool is_framed = true;

  [[nodiscard]] int hosts() const noexcept { return ranks / ranks_per_host; }
  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  void validate() const;
};

/// What ranks compute, in seconds.
struct Compute {
  double encode = 0;    ///< Per element: residual, momentum, records.
  double serve = 0;     ///< Per element of the model, this rank's share of it.
  double update = 0;    ///< Per element, from received records.
  double turn = 30e-6;  ///< Per turn: threads wake, work is queued.
  double norm = 0;      ///< Per element, before a compressed exchange.
  double exact_update = 0;  ///< Adam's, per element.
  /// Per element: adding the ranks' values of an exact average, on the
  /// communication thread.
  double sum = 0;

  // ---- per element, of 0/1 Adam
  double local_step = 0;
  double sync_encode = 0;  ///< In place of encode, in a sync.
  double sync_update = 0;  ///< In place of update, in a sync.
  double fresh = 0;        ///< Memory anew, filled with zeros.

  // ---- per element, of ZeRO
  double store = 0;           ///< A gradient into the memory of its bucket.
  double quantize = 0;        ///< Gradient and residual, in few bits.
  double quantized_mean = 0;  ///< Of the model, this rank's share of it.
  double difference = 0;      ///< Likewise: what replicas lack, in few bits.
  double dequantize = 0;      ///< Added to a replica.
};

// ---- one exchange, in seconds ----------------------------------------------
// A collective takes  latency + max(bytes of the host's card / its rate,
// bytes inside the host / inner rate, messages * cost of a message).

/// All-to-all or all-gather of `bytes` in all: W - 1 messages of bytes / W.
[[nodiscard]] double collective_seconds(const Network& network, double bytes);

/// The better of a ring and a tree that cross every card once each way, as
/// peers have them.
[[nodiscard]] double ring_seconds(const Network& network, double bytes,
                                  double bucket_bytes = 25e6);
/// Thinwire's exact all-reduce: all-to-all, sums in rank order, all-gather.
[[nodiscard]] double direct_seconds(const Network& network, double bytes,
                                    double bucket_bytes);
/// The same by host: `bytes` go through each host up and down, and between
/// hosts a local rank's share of them, `sum_widening` times as many on the way
/// up: sums of 16-bit values travel between hosts in fp32.
[[nodiscard]] double direct_by_host_seconds(const Network& network,
                                            double bytes, double bucket_bytes,
                                            double sum_widening = 1);

/// An exchange of few bits per element, each way.
struct LowBitExchange {
  double elements = 0;
  double bucket_elements = 1 << 20;
  int bits_up = 1;
  int bits_down = 1;
  /// Of one element, on its exact way through the host; by host only.
  double inner_bytes = 2;
};

/// When bucket `k` of `count` may be encoded, in seconds; null: at once.
using Ready = std::function<double(std::size_t k, std::size_t count)>;

/// In turn k bucket k is encoded, k - 2 averaged, k - 4 applied, while k - 1
/// and k - 3 travel: docs/design/0005.
[[nodiscard]] double two_phase_seconds(const Network& network,
                                       const LowBitExchange& exchange,
                                       const Compute& compute = {},
                                       const Ready& ready = nullptr);
/// Exact inside the host, few bits between hosts; `bucket_elements` are those
/// of the whole, of which each local rank exchanges 1/G.
[[nodiscard]] double two_phase_by_host_seconds(const Network& network,
                                               const LowBitExchange& exchange,
                                               const Compute& compute = {});

// ---- what a step sends, takes and lasts -------------------------------------

/// How ranks average in a step.
enum class Way {
  kExact,        ///< Gradients, overlapped with backward.
  kOnebitAdam,   ///< Compressed steps of 1-bit Adam (1-bit LAMB sends as much).
  kZeroOneAdam,  ///< Local steps and syncs of 0/1 Adam.
  kZero,         ///< ZeRO stage 2, in full precision.
  kZero8,        ///< The same over 8 bits each way.
  kZero4,        ///< And over 4.
  kLean,         ///< Compressed steps of LeanOnebitAdam.
};
inline constexpr int kNumWays = 7;

/// "exact", "onebit_adam", "zero_one_adam", "zero", "zero 8/8", "zero 4/4",
/// "lean".
[[nodiscard]] std::string_view to_string(Way way) noexcept;

/// The length of a run, and the steps at which its stages end.
struct RunStages {
  static constexpr std::int64_t kMostSteps = 100'000'000;

  std::int64_t steps = 1;        ///< In [1, kMostSteps].
  std::int64_t freeze_step = 1;  ///< Exact steps of 1-bit Adam and lean, >= 1.
  optim::ZeroOneStages zero_one{};
};

/// A model and its step on one rank.
struct Workload {
  double parameters = 0;  ///< Elements, > 0.
  DType dtype = DType::kFloat32;
  double forward_seconds = 0;   ///< One forward.
  double backward_seconds = 0;  ///< One backward.
  double backwards = 1;         ///< Per step, each with its forward; >= 1.
  /// Elements of a bucket; 0: exchange::bucket_rule().
  double bucket_elements = 0;
  double zero_bucket_bound = 5e8;          ///< Most elements of one of ZeRO's.
  DType residual_dtype = DType::kFloat32;  ///< Lean and ZeRO take bf16.
  double steps_per_sync = 16;              ///< Of 0/1 Adam.
  /// Of 0/1 Adam before its freeze, where one step in so many is exact and
  /// renews the variance; 0: after the freeze.
  double steps_per_variance_step = 0;
  /// What is computed beside backward, and what communication takes of a
  /// processor, do not slow it down.
  bool has_spare_core = true;
  /// Compressed exchanges of 1-bit Adam run beside backward.
  bool compressed_during_backward = false;
  std::optional<RunStages> run{};  ///< If unset, only a step is predicted.

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  void validate() const;
};

/// What a rank hands to its transport in a step, on average over ranks and
/// steps.
struct Traffic {
  double bytes = 0;
  double bytes_between_hosts = 0;
  double messages = 0;
  /// Of messages, one after the other; if a bucket has fewer blocks than there
  /// are ranks, possibly no single rank takes part in every round.
  double rounds = 0;

  bool operator==(const Traffic&) const = default;
};

/// Bytes of a rank in the steps of this way.
struct PlannedMemory {
  double parameters = 0;  ///< What the model reads; masters are states.
  double gradients = 0;
  double states = 0;
  double buckets = 0;

  [[nodiscard]] double total() const noexcept {
    return parameters + gradients + states + buckets;
  }
};

/// Time and traffic of a whole run, its exact stage included.
struct PlannedRun {
  double seconds = 0;
  double bytes = 0;  ///< Traffic::bytes of all steps.
  /// The run's steps by their optim::Phase. Every step of ZeRO is exact, with
  /// low-bit communication too.
  std::int64_t exact_steps = 0;
  std::int64_t compressed_steps = 0;
  std::int64_t local_steps = 0;
};

/// One way, flat or by host.
struct Prediction {
  Way way = Way::kExact;
  bool is_by_host = false;
  std::optional<PlannedRun> run{};  ///< Set if the workload has a run.
  double step_seconds = 0;  ///< After the freeze, unless the workload says.
  Traffic traffic{};
  PlannedMemory memory{};
  /// The card in Gbit/s, nearest to the given one, from which on an exact step
  /// with the same exchange, flat or hierarchical, is at least as fast.
  /// Infinite if this way is faster from the given card up to 1 Tbit/s; 0 if it
  /// is not faster from the given card down to 1 Mbit/s. Of kExact 0.
  double break_even_gbps = 0;
  /// Steps that share one compressed exchange: 0/1 Adam's steps_per_sync.
  double steps_per_exchange = 1;
  double steps_per_variance_step = 0;  ///< The workload's, of 0/1 Adam.
  bool has_spare_core = true;          ///< The workload's.
};

[[nodiscard]] Traffic traffic_of(Way way, bool by_host, const Workload& work,
                                 const Network& network);
[[nodiscard]] PlannedMemory memory_of(Way way, bool by_host,
                                      const Workload& work,
                                      const Network& network);
/// A step with exact averages that would take `exchange_seconds` alone, of
/// which all but an eighth of backward's length may run beside it. The
/// exchange takes no processor.
[[nodiscard]] double overlapped_step_seconds(const Workload& work,
                                             const Compute& compute,
                                             double exchange_seconds);
[[nodiscard]] double step_seconds(Way way, bool by_host, const Workload& work,
                                  const Network& network,
                                  const Compute& compute);
/// Predicts the run `work.run`, which must be set. The steps of 0/1 Adam follow
/// its schedule; exact steps of lean 1-bit Adam are those of ZeRO.
[[nodiscard]] PlannedRun planned_run(Way way, bool by_host,
                                     const Workload& work,
                                     const Network& network,
                                     const Compute& compute);
/// All of it. Throws Error(kInvalidArgument) where the arguments are out of
/// range, and for `by_host` without several hosts of several ranks each.
[[nodiscard]] Prediction predict(Way way, bool by_host, const Workload& work,
                                 const Network& network,
                                 const Compute& compute);
/// Every way, flat, and by host where there are several hosts of several ranks
/// each; in the order of Way.
[[nodiscard]] std::vector<Prediction> plan(const Workload& work,
                                           const Network& network,
                                           const Compute& compute);

}  // namespace thinwire::plan
