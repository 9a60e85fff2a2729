// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/core/dtype.h"
#include "thinwire/optim/run_length.h"

/// Predicts the time, traffic and memory of each averaging method from
/// formulas, before a run. Local; nothing is measured here. docs/guide/plan.md
/// describes the model.
namespace thinwire::plan {

/// Connections between ranks. All hosts have the same number of ranks.
struct Network {
  int ranks = 1;                   ///< W, >= 1.
  int ranks_per_host = 1;          ///< G, divides `ranks`.
  double gbps = 10;                ///< Rate of a host's card, each direction.
  double latency_seconds = 50e-6;  ///< Per collective between hosts.
  /// Time that the communication thread needs to send one message and receive
  /// another.
  double message_seconds = 5e-6;
  double inner_bytes_per_second = 10e9;  ///< Rate of a rank inside its host.
  double inner_latency_seconds = 5e-6;
  double inner_message_seconds = 1e-6;
  /// Processor time per byte that a rank sends between hosts, while it receives
  /// another byte.
  double processor_seconds_per_byte = 0;
  /// Processor time per byte inside a host.
  double inner_processor_seconds_per_byte = 0;
  /// Whether `gbps` is the rate of the cable, which includes Ethernet, IP and
  /// TCP headers. Otherwise it is the rate of the payload, as measurements give
  /// it.
  bool is_framed = true;

  [[nodiscard]] int hosts() const noexcept { return ranks / ranks_per_host; }
  /// Checks the fields. Throws Error(kInvalidArgument) naming the field, its
  /// range and its value.
  void validate() const;
};

/// Computing times of ranks, in seconds.
struct Compute {
  double encode = 0;  ///< Per element: residual, momentum, records.
  double serve = 0;   ///< Per element of the model: averaging a share.
  double update = 0;  ///< Per element, from received records.
  double turn =
      30e-6;        ///< Threads and queues, per turn of two_phase_seconds().
  double norm = 0;  ///< Per element, of the gradient.
  double exact_update = 0;  ///< Per element, by Adam.
  /// Per element: adding the ranks' values of an exact average, on the
  /// communication thread.
  double sum = 0;

  // ---- per element, for 0/1 Adam
  double local_step = 0;
  double sync_encode = 0;  ///< In a sync, in place of encode.
  double sync_update = 0;  ///< In a sync, in place of update.
  double fresh = 0;        ///< New memory, filled with zeros.

  // ---- per element, for ZeRO
  double store = 0;     ///< Copying a gradient into its bucket.
  double quantize = 0;  ///< Encoding a gradient and its residual.
  /// Averaging this rank's share, per element of the model.
  double quantized_mean = 0;
  /// Encoding the difference between this rank's share and its replicas, per
  /// element of the model.
  double difference = 0;
  double dequantize = 0;  ///< Decoding a change and adding it to a replica.

  // ---- per element, for low rank
  static constexpr int kRank = 8;  ///< Rank that is measured.
  double factor = 0;               ///< Both products of matrices with factors.
  double product = 0;  ///< The product of the factors, and the residual.
};

// ---- one exchange, in seconds ----------------------------------------------
// A collective takes
//   latency + max(bytes of the host's card / its rate, bytes inside the host /
//   inner rate, messages * cost of a message)

/// Returns the time of an all-to-all or all-gather, in which each rank sends
/// W - 1 messages of bytes / W.
[[nodiscard]] double collective_seconds(const Network& network, double bytes);

/// Returns the time of a ring all-reduce, as in other libraries. Between hosts,
/// the latency of a tree counts if it is lower. Each rank sends 2 (W - 1) / W
/// of `bytes`.
[[nodiscard]] double ring_seconds(const Network& network, double bytes,
                                  double bucket_bytes = 25e6);
/// Returns the time of Thinwire's exact all-reduce: all-to-all, sums in rank
/// order, all-gather.
[[nodiscard]] double direct_seconds(const Network& network, double bytes,
                                    double bucket_bytes);
/// Returns the time of the hierarchical all-reduce. Inside each host, `bytes`
/// are reduced and gathered. Between hosts, each local rank exchanges its
/// share. Before the sum that share is `sum_widening` times as large, because
/// sums of 16-bit values are sent between hosts in fp32.
[[nodiscard]] double direct_by_host_seconds(const Network& network,
                                            double bytes, double bucket_bytes,
                                            double sum_widening = 1);

/// A low-bit exchange.
struct LowBitExchange {
  double elements = 0;
  double bucket_elements = 1 << 20;
  int bits_up = 1;
  int bits_down = 1;
  /// Bytes per element that are first exchanged inside a host, if hierarchical.
  double inner_bytes = 2;
};

/// Returns the time in seconds at which bucket `k` of `count` may be encoded.
/// If null, all buckets may be encoded immediately.
using Ready = std::function<double(std::size_t k, std::size_t count)>;

/// Returns the time of a flat exchange. In turn k, bucket k is encoded, k - 2
/// averaged and k - 4 applied, while k - 1 and k - 3 are in flight. See
/// docs/design/0005.
[[nodiscard]] double two_phase_seconds(const Network& network,
                                       const LowBitExchange& exchange,
                                       const Compute& compute = {},
                                       const Ready& ready = nullptr);
/// Returns the time of a hierarchical exchange: exact inside the host, low-bit
/// between hosts. `bucket_elements` counts a whole bucket, of which each local
/// rank exchanges 1/G.
[[nodiscard]] double two_phase_by_host_seconds(const Network& network,
                                               const LowBitExchange& exchange,
                                               const Compute& compute = {});

// ---- traffic, memory and time of a step ------------------------------------

/// Averaging method of a step.
enum class Way {
  kExact,        ///< Gradients, overlapped with backward.
  kOnebitAdam,   ///< Compressed steps of 1-bit Adam; 1-bit LAMB sends as much.
  kZeroOneAdam,  ///< Local steps and syncs of 0/1 Adam.
  kZero,         ///< ZeRO stage 2, in full precision.
  kZero8,        ///< ZeRO stage 2 with 8 bits in both directions.
  kZero4,        ///< ZeRO stage 2 with 4 bits in both directions.
  kLean,         ///< Compressed steps of LeanOnebitAdam.
  kOuter,        ///< Local steps and syncs of an outer loop in 4 bits.
  kTorchDdp,     ///< torch's DDP with gloo: a ring during backward. Flat.
  kDdpHook,      ///< ddp_hook: gradients in 4 bits, during backward.
  kLowRank,      ///< Gradients as factors in 8 bits, during backward.
};
inline constexpr int kNumWays = 11;

/// Returns "exact", "onebit_adam", "zero_one_adam", "zero", "zero 8/8", "zero
/// 4/4", "lean", "outer 4/4", "torch ddp", "ddp_hook 4/4" or "low rank".
[[nodiscard]] std::string_view to_string(Way way) noexcept;

/// Length of a run, and the steps at which its stages end.
struct RunStages {
  static constexpr std::int64_t kMostSteps = 100'000'000;

  std::int64_t steps = 1;  ///< In [1, kMostSteps].
  /// Exact steps of 1-bit Adam, lean and an outer loop, >= 1.
  std::int64_t freeze_step = 1;
  /// Bits per gradient element in the warm-up: 4, 8, or 0 for full precision.
  int warmup_bits = 0;
  optim::ZeroOneStages zero_one{};
  /// Steps with 4 bits before low rank, >= 0. The default is
  /// optim::first_low_rank_steps_of_run().
  std::optional<std::int64_t> first_low_rank_steps{};
};

/// A model, and its step on one rank.
struct Workload {
  double parameters = 0;  ///< Elements, >= 1.
  DType dtype = DType::kFloat32;
  double forward_seconds = 0;   ///< One forward.
  double backward_seconds = 0;  ///< One backward.
  double backwards = 1;         ///< Per step, each with its forward; >= 1.
  /// Elements of a bucket; 0 for exchange::bucket_rule().
  double bucket_elements = 0;
  double zero_bucket_bound = 5e8;  ///< Largest size of a ZeRO bucket, elements.
  /// Dtype of the residuals, which lean, ZeRO and the outer loop ignore.
  DType residual_dtype = DType::kFloat32;
  double steps_per_sync = 16;  ///< Steps of 0/1 Adam per sync.
  /// Number of 0/1 Adam's steps per variance step, before the freeze. 0
  /// predicts steps after the freeze.
  double steps_per_variance_step = 0;
  double steps_per_outer_sync = 15;  ///< Steps of an outer loop per sync.
  /// Whether a core is free. Other computing and communication then do not slow
  /// down backward.
  bool has_spare_core = true;
  /// Whether 1-bit Adam sends gradients during backward, as in a low-bit
  /// warm-up. Without effect in a hierarchical exchange.
  bool sends_during_backward = false;
  /// Bits per element that 1-bit Adam sends in each direction: 1, or 4 or 8 in
  /// a low-bit warm-up.
  int onebit_bits = 1;
  int low_rank = 8;  ///< Largest number of columns of a factor, in [1, 64].
  /// Matrices of the model, for low rank, in [1, parameters]. The default is
  /// 32, or the number of parameters if that is less. The plan assumes that
  /// they have all elements and one size, three times as long as wide. A
  /// transformer of L layers has 4 L.
  std::optional<double> matrices{};
  std::optional<RunStages> run{};  ///< If unset, only a step is predicted.

  /// Checks the fields. Throws Error(kInvalidArgument) naming the field, its
  /// range and its value.
  void validate() const;
};

/// Traffic that a rank passes to its transport in a step, on average over ranks
/// and steps.
struct Traffic {
  double bytes = 0;
  double bytes_between_hosts = 0;
  double messages = 0;
  /// Rounds of consecutive messages. If a bucket has fewer blocks than there
  /// are ranks, no single rank may take part in all rounds.
  double rounds = 0;

  bool operator==(const Traffic&) const = default;
};

/// Memory of a rank during steps of one Way, in bytes.
struct PlannedMemory {
  double parameters = 0;  ///< Excludes masters, which count as states.
  double gradients = 0;
  double states = 0;
  double buckets = 0;

  [[nodiscard]] double total() const noexcept {
    return parameters + gradients + states + buckets;
  }
};

/// Time and traffic of a whole run, including its exact stage.
struct PlannedRun {
  double seconds = 0;
  double bytes = 0;  ///< Traffic::bytes of all steps.
  /// Number of steps with Phase::kExact, which all steps of ZeRO have, even
  /// with low-bit communication.
  std::int64_t exact_steps = 0;
  std::int64_t compressed_steps = 0;
  std::int64_t local_steps = 0;
  /// RunStages::warmup_bits for 1-bit Adam, lean and outer loops on several
  /// ranks. Otherwise 0.
  int warmup_bits = 0;
};

/// Prediction for one way, flat or hierarchical.
struct Prediction {
  Way way = Way::kExact;
  bool is_by_host = false;
  std::optional<PlannedRun> run{};  ///< Set if the workload has a run.
  /// Time of a step after the freeze, unless the workload selects another
  /// stage.
  double step_seconds = 0;
  Traffic traffic{};
  PlannedMemory memory{};
  /// Rate of the card, in Gbit/s, at which an exact step with the same
  /// is_by_host becomes as fast; the nearest to the given rate counts. Infinite
  /// if this way is faster from the given rate up to 1 Tbit/s. 0 if it is not
  /// faster from the given rate down to 1 Mbit/s, and for kExact or one rank.
  double break_even_gbps = 0;
  /// Number of steps per compressed exchange. For 0/1 Adam and an outer loop,
  /// it comes from the workload. Otherwise it is 1.
  double steps_per_exchange = 1;
  /// Workload::steps_per_variance_step for 0/1 Adam, otherwise 0.
  double steps_per_variance_step = 0;
  int low_rank = 0;  ///< Workload::low_rank for kLowRank, otherwise 0.
  /// Whether matrices have factors of low rank. Otherwise all elements are sent
  /// in 8 bits.
  bool has_factors = false;
  bool has_spare_core = true;  ///< Workload::has_spare_core.
  double parameters = 0;       ///< Workload::parameters.
};

/// Returns the way's name. For kLowRank it includes the rank: "low rank 8".
[[nodiscard]] std::string name_of(const Prediction& prediction);
/// Returns the traffic of a step.
[[nodiscard]] Traffic traffic_of(Way way, bool by_host, const Workload& work,
                                 const Network& network);
/// Returns the memory of a rank.
[[nodiscard]] PlannedMemory memory_of(Way way, bool by_host,
                                      const Workload& work,
                                      const Network& network);
/// Returns the time of a step with exact averages. The averages take
/// `exchange_seconds`. They start after an eighth of backward and run in
/// parallel with the rest. The exchange takes no processor time.
[[nodiscard]] double overlapped_step_seconds(const Workload& work,
                                             const Compute& compute,
                                             double exchange_seconds);
/// Returns the time of a step.
[[nodiscard]] double step_seconds(Way way, bool by_host, const Workload& work,
                                  const Network& network,
                                  const Compute& compute);
/// Predicts the run `work.run`, which must be set. The steps of 0/1 Adam follow
/// its schedule; exact steps of lean 1-bit Adam are those of ZeRO.
[[nodiscard]] PlannedRun planned_run(Way way, bool by_host,
                                     const Workload& work,
                                     const Network& network,
                                     const Compute& compute);
/// Predicts step time, traffic, memory and, if `work.run` is set, the run.
/// Throws Error(kInvalidArgument) if arguments are out of range. `by_host`
/// needs several hosts of several ranks each, and another way than kTorchDdp.
[[nodiscard]] Prediction predict(Way way, bool by_host, const Workload& work,
                                 const Network& network,
                                 const Compute& compute);
/// Predicts every way in the order of Way: flat, and except for kTorchDdp
/// hierarchical if there are several hosts of several ranks each.
[[nodiscard]] std::vector<Prediction> plan(const Workload& work,
                                           const Network& network,
                                           const Compute& compute);

}  // namespace thinwire::plan
