// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "thinwire/comm/transport.h"
#include "thinwire/comm/work.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"

namespace thinwire::comm {

/// Which ranks of a group share a host: all hosts hold equally many. Hosts are
/// in the order of their lowest rank, the ranks of a host in theirs.
struct Hosts {
  int size = 1;            ///< Hosts, H.
  int index = 0;           ///< Of this rank's host, in [0, H).
  int ranks_per_host = 1;  ///< G; 1: flat.
  int local_rank = 0;      ///< Of this rank on its host, in [0, G).
  /// The rank that is local rank l of host h, at h * G + l; empty where flat.
  std::vector<int> ranks{};

  [[nodiscard]] bool is_flat() const noexcept { return ranks_per_host == 1; }
  bool operator==(const Hosts&) const = default;
};

/// How all_reduce and reduce_scatter form their sums.
enum class Reduction {
  /// Rank 0's value first, then rank 1's, ...: all-to-all, add, all-gather. As
  /// many bytes as a ring, and the same bits on every backend.
  kRankOrder,
  /// The backend's own all-reduce where it has one.
  kNative,
  /// Inside each host first, in rank order, unrounded; then the hosts' sums, in
  /// the order of hosts. 1/G of the bytes of kRankOrder cross a host's network
  /// card, of 16-bit sums twice that. all_gather goes by host too, all others
  /// as in kRankOrder.
  kByHost,
};

struct CommunicatorOptions {
  /// How long one collective may take, > 0.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  Reduction reduction = Reduction::kRankOrder;
  /// Of this group; flat if, and only if, `reduction` is not kByHost.
  Hosts hosts{};
};

/// What this rank has handed to its transport since construction. kNative is
/// counted as if it were kRankOrder; barrier() and split() have no payload.
struct Counters {
  std::uint64_t bytes_sent = 0;   ///< Payload to other ranks, no headers.
  std::uint64_t collectives = 0;  ///< Calls below, whatever they are made of.
  std::uint64_t messages = 0;     ///< To other ranks.
  /// Of bytes_sent, what went to ranks of other hosts: all of it where flat.
  std::uint64_t bytes_between_hosts = 0;
  /// In which a collective was under way, of completed ones; those of several
  /// groups are added up.
  double busy_seconds = 0;

  Counters& operator+=(const Counters& more) noexcept;
};
/// What was counted since `before`, an earlier value of the same counters.
[[nodiscard]] Counters operator-(const Counters& now,
                                 const Counters& before) noexcept;

struct HostGroups;  // hosts.h

/// The ranks of one group, and collectives among them. Every call below is
/// collective: all ranks make the same calls in the same order with fitting
/// sizes. Collectives run one after the other on one thread per communicator,
/// so they go on while the caller computes: the `queue_` form returns at once,
/// the plain form waits. In a group of one every call is a local copy or
/// nothing.
///
/// Arguments are checked before anything is sent: Error(kInvalidArgument). A
/// lost, hung or disagreeing peer gives Error(kCommFailure) on every rank
/// within the time-out; after it the communicator may only be destroyed. A
/// communicator destroyed by an exception tells its peers.
class Communicator {
 public:
  explicit Communicator(std::unique_ptr<Transport> transport,
                        const CommunicatorOptions& options = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  /// "local", "mpi", ...
  [[nodiscard]] std::string_view backend() const noexcept;
  [[nodiscard]] std::chrono::milliseconds timeout() const noexcept;
  /// As its options say. Flat: every rank is a host of its own, in rank order.
  [[nodiscard]] const Hosts& hosts() const noexcept;
  /// Of completed and queued collectives, those of split_by_host()'s groups
  /// included; split groups count for themselves.
  [[nodiscard]] Counters counters() const noexcept;

  /// In place: every rank gets the sum, the largest or the mean of all ranks'
  /// values, element by element. kFloat16 and kBFloat16 are added in float and
  /// rounded once. kMax of floats: a NaN on any rank gives NaN. kMean takes no
  /// integers; in a group of one it is the identity.
  void all_reduce(View data, ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] Work queue_all_reduce(View data, ReduceOp op = ReduceOp::kSum);

  /// `output` gets this rank's piece of the reduced input, with the bits that
  /// all_reduce gives in rank order: input.size() == size() * output.size().
  /// `output` may be its own place in `input`. It may be kFloat32 where `input`
  /// is kFloat16 or kBFloat16: kSum and kMean are then left in float,
  /// unrounded.
  void reduce_scatter(ConstView input, View output,
                      ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] Work queue_reduce_scatter(ConstView input, View output,
                                          ReduceOp op = ReduceOp::kSum);

  /// The same with `counts[r]` elements for rank r, the same counts on all
  /// ranks; output.size() == counts[rank()]. Counts of 0 are fine.
  void reduce_scatter(ConstView input, View output,
                      std::span<const std::size_t> counts,
                      ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] Work queue_reduce_scatter(ConstView input, View output,
                                          std::span<const std::size_t> counts,
                                          ReduceOp op = ReduceOp::kSum);

  /// The same where rank r's piece of the input is pieces[r]. Together they are
  /// all of it; they may lie in any order. By host, pieces of one local rank
  /// should be neighbours in the order of hosts: then they travel together.
  void reduce_scatter(ConstView input, View output,
                      std::span<const Range> pieces,
                      ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] Work queue_reduce_scatter(ConstView input, View output,
                                          std::span<const Range> pieces,
                                          ReduceOp op = ReduceOp::kSum);

  /// output[r] = rank r's input; output.size() == size() * input.size().
  /// Of 64 KiB in all and less, over more than 8 ranks, in ceil(log2(size()))
  /// steps of one message each.
  /// `input` may be its own place in `output`.
  void all_gather(ConstView input, View output);
  [[nodiscard]] Work queue_all_gather(ConstView input, View output);

  /// The same with `counts[r]` elements from rank r; input.size() ==
  /// counts[rank()]. Counts of 0 are fine.
  void all_gather(ConstView input, View output,
                  std::span<const std::size_t> counts);
  [[nodiscard]] Work queue_all_gather(ConstView input, View output,
                                      std::span<const std::size_t> counts);

  /// The same where rank r's place in the output is pieces[r], as in
  /// reduce_scatter().
  void all_gather(ConstView input, View output, std::span<const Range> pieces);
  [[nodiscard]] Work queue_all_gather(ConstView input, View output,
                                      std::span<const Range> pieces);

  /// Piece r of `input` goes to rank r, piece r of `output` comes from it; all
  /// pieces equal. They must not overlap.
  void all_to_all(ConstView input, View output);
  [[nodiscard]] Work queue_all_to_all(ConstView input, View output);

  /// The same with `send_counts[r]` elements to rank r and
  /// `receive_counts[r]` from it, which must be what r sends.
  void all_to_all(ConstView input, std::span<const std::size_t> send_counts,
                  View output, std::span<const std::size_t> receive_counts);
  [[nodiscard]] Work queue_all_to_all(
      ConstView input, std::span<const std::size_t> send_counts, View output,
      std::span<const std::size_t> receive_counts);

  /// Every rank gets root's values; root in [0, size()).
  void broadcast(View data, int root);
  [[nodiscard]] Work queue_broadcast(View data, int root);

  /// Returns when every rank has come here.
  void barrier();

  /// Local, queued: body() runs when its turn among this rank's collectives has
  /// come, on the thread that runs them: those queued behind it wait for it. It
  /// must not wait for any of those. If it throws, they fail, as after
  /// give_up(). In a group of one it runs at once. No collective is counted.
  [[nodiscard]] Work queue_local(std::function<void()> body);

  /// Local: returns when all that this rank has queued is done. Throws
  /// Error(kCommFailure) if some of it has failed.
  void finish_queued();
  /// Local: this rank cannot go on. What it has under way fails, and its peers
  /// get Error(kCommFailure) "rank R gave up: REASON" at their next exchange
  /// with it. From now on this object may only be destroyed. In a group of one
  /// there is nobody to tell, and nothing happens.
  void give_up(std::string_view reason) noexcept;

  /// The communicator of the ranks with this `color` (>= 0), ordered by `key`,
  /// then by rank, with the same options but flat; null if `color` < 0. Throws
  /// Error(kUnavailable) if the transport has no groups; this one lives on.
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key = 0);

  /// The same ranks again, with collectives by host (Reduction::kByHost): what
  /// optimizers on it exchange crosses a host's network card once. `hosts` is
  /// find_hosts()'s; flat ones give an ordinary communicator. Throws
  /// Error(kInvalidArgument), before anything is sent, if they do not fit this
  /// group and rank.
  [[nodiscard]] std::unique_ptr<Communicator> by_host(const Hosts& hosts);

 private:
  friend HostGroups split_by_host(Communicator& comm);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::comm
