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

/// The hosts of a group's ranks. All hosts have the same number of ranks. Hosts
/// are ordered by their lowest rank, and the ranks of a host by their number.
struct Hosts {
  int size = 1;            ///< Number of hosts, H.
  int index = 0;           ///< Index of this rank's host, in [0, H).
  int ranks_per_host = 1;  ///< G, or 1 if flat.
  int local_rank = 0;      ///< Index of this rank on its host, in [0, G).
  /// Element h * G + l is the rank with local rank l on host h; empty if flat.
  std::vector<int> ranks{};

  [[nodiscard]] bool is_flat() const noexcept { return ranks_per_host == 1; }
  bool operator==(const Hosts&) const = default;
};

struct CommunicatorOptions {
  /// Longest time that one collective may take, > 0.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Hosts of this group. If they are flat, all_reduce and reduce_scatter add
  /// the values in the order of ranks: all-to-all, add, all-gather. This sends
  /// as many bytes as a ring and gives the same bits on every backend.
  /// Otherwise they add inside each host first, in rank order and unrounded,
  /// and then add the hosts' sums in the order of hosts. A host's network card
  /// then carries 1/G of the bytes of flat hosts; in 16 bits it carries 2/G
  /// with reduce_scatter and 1.5/G with all_reduce. all_gather is hierarchical
  /// above 64 KiB. Other collectives do not depend on hosts.
  Hosts hosts{};
};

/// Traffic that this rank has passed to its transport since construction.
/// barrier() and split() have no payload.
struct Counters {
  std::uint64_t bytes_sent = 0;   ///< Payload to other ranks, without headers.
  std::uint64_t collectives = 0;  ///< Calls, not messages.
  std::uint64_t messages = 0;     ///< Messages to other ranks.
  /// Part of bytes_sent that went to other hosts; all of it if flat.
  std::uint64_t bytes_between_hosts = 0;
  /// Time during which collectives were running, without pending ones. The
  /// times of several groups are added.
  double busy_seconds = 0;

  Counters& operator+=(const Counters& more) noexcept;
};
/// Returns the traffic since `before`, an earlier value of the same counters.
[[nodiscard]] Counters operator-(const Counters& now,
                                 const Counters& before) noexcept;

struct HostGroups;  // hosts.h

/// The ranks of one group, and collectives among them. All calls are
/// collective, except those marked local and the accessors. All ranks must make
/// the same calls in the same order with matching sizes. One thread per
/// communicator runs the collectives one after the other, so they proceed while
/// the caller computes. The `queue_` form returns at once; the plain form
/// waits. In a group of one rank, every call copies locally or does nothing.
///
/// Invalid arguments throw Error(kInvalidArgument) before anything is sent. If
/// a peer is lost, hangs or disagrees, every rank throws Error(kCommFailure)
/// within the time-out. The communicator may then only be destroyed. A
/// communicator that is destroyed by an exception notifies its peers.
class Communicator {
 public:
  explicit Communicator(std::unique_ptr<Transport> transport,
                        const CommunicatorOptions& options = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  /// Returns the name, for example "local" or "mpi".
  [[nodiscard]] std::string_view backend() const noexcept;
  [[nodiscard]] std::chrono::milliseconds timeout() const noexcept;
  /// Returns the hosts of the options. If flat, every rank is a separate host,
  /// in rank order.
  [[nodiscard]] const Hosts& hosts() const noexcept;
  /// Returns the traffic of completed and queued collectives, including the
  /// groups of split_by_host(). Groups made by split() have separate counters.
  [[nodiscard]] Counters counters() const noexcept;

  /// Replaces all ranks' values, element by element, with their sum, maximum or
  /// mean. kFloat16 and kBFloat16 are added in float and rounded once. For kMax
  /// of floats, a NaN on any rank gives NaN. kMean does not accept integers; in
  /// a group of one it is the identity.
  void all_reduce(View data, ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] Work queue_all_reduce(View data, ReduceOp op = ReduceOp::kSum);

  /// Writes this rank's piece of the reduced input to `output`, with the same
  /// bits as all_reduce(). input.size() == size() * output.size(). `output` may
  /// be the same memory as this rank's piece of `input`. If `input` is kFloat16
  /// or kBFloat16, `output` may be kFloat32, which then receives the unrounded
  /// kSum or kMean.
  void reduce_scatter(ConstView input, View output,
                      ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] Work queue_reduce_scatter(ConstView input, View output,
                                          ReduceOp op = ReduceOp::kSum);

  /// Reduces and scatters `counts[r]` elements to rank r. The counts are equal
  /// on all ranks and may be 0. output.size() == counts[rank()].
  void reduce_scatter(ConstView input, View output,
                      std::span<const std::size_t> counts,
                      ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] Work queue_reduce_scatter(ConstView input, View output,
                                          std::span<const std::size_t> counts,
                                          ReduceOp op = ReduceOp::kSum);

  /// Reduces and scatters, with pieces[r] as rank r's piece of the input. The
  /// pieces cover the input in any order. If hosts are hierarchical, the pieces
  /// of one local rank should be adjacent, in the order of hosts, so that they
  /// are sent together.
  [[nodiscard]] Work queue_reduce_scatter(ConstView input, View output,
                                          std::span<const Range> pieces,
                                          ReduceOp op = ReduceOp::kSum);

  /// Copies rank r's input to output[r]; output.size() == size() *
  /// input.size(). Among more than 8 ranks, a gather of up to 64 KiB in all
  /// runs in `ceil(log2(size()))` steps of one message each. `input` may be the
  /// same memory as its place in `output`.
  void all_gather(ConstView input, View output);
  [[nodiscard]] Work queue_all_gather(ConstView input, View output);

  /// Gathers `counts[r]` elements from rank r. Counts may be 0. input.size() ==
  /// counts[rank()].
  void all_gather(ConstView input, View output,
                  std::span<const std::size_t> counts);
  [[nodiscard]] Work queue_all_gather(ConstView input, View output,
                                      std::span<const std::size_t> counts);

  /// Gathers, with pieces[r] as rank r's place in the output, as in
  /// queue_reduce_scatter().
  [[nodiscard]] Work queue_all_gather(ConstView input, View output,
                                      std::span<const Range> pieces);

  /// Sends piece r of `input` to rank r and receives piece r of `output` from
  /// it. All pieces have one size, and the arrays must not overlap.
  void all_to_all(ConstView input, View output);
  [[nodiscard]] Work queue_all_to_all(ConstView input, View output);

  /// Sends `send_counts[r]` elements to rank r and receives `receive_counts[r]`
  /// from it, which must be the number that r sends.
  void all_to_all(ConstView input, std::span<const std::size_t> send_counts,
                  View output, std::span<const std::size_t> receive_counts);
  [[nodiscard]] Work queue_all_to_all(
      ConstView input, std::span<const std::size_t> send_counts, View output,
      std::span<const std::size_t> receive_counts);

  /// Copies rank root's values to every rank; root is in [0, size()).
  void broadcast(View data, int root);
  [[nodiscard]] Work queue_broadcast(View data, int root);

  /// Blocks until every rank has called it.
  void barrier();

  /// Calls `body` on the thread of the collectives, after the collectives
  /// queued before it and before later ones. `body` may compute, but must not
  /// call this object. If it throws, later collectives fail. Local.
  [[nodiscard]] Work queue_call(std::function<void()> body);
  /// Blocks until all collectives that this rank has queued are done. Throws
  /// Error(kCommFailure) if any of them has failed. Local.
  void finish_queued();
  /// Announces that this rank cannot continue. Its pending calls fail, and its
  /// peers throw Error(kCommFailure) "rank R gave up: REASON" at their next
  /// exchange with it. This also applies to groups split from this one.
  /// Afterwards these objects may only be destroyed. With one rank it does
  /// nothing. Local.
  void give_up(std::string_view reason) noexcept;

  /// Returns the communicator of the ranks with this `color` (>= 0), ordered by
  /// `key`, then by rank. Returns null if `color` < 0. It has the same options
  /// but is flat. Throws Error(kUnavailable) if the transport has no groups;
  /// this communicator remains usable.
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key = 0);

  /// Returns a communicator of the same ranks with hierarchical collectives
  /// (CommunicatorOptions::hosts). An optimizer's exchanges on it cross a
  /// host's network card only once. `hosts` is the result of find_hosts(); if
  /// flat, the result is an ordinary communicator. Throws
  /// Error(kInvalidArgument) before anything is sent if the hosts do not fit
  /// this group and rank.
  [[nodiscard]] std::unique_ptr<Communicator> by_host(const Hosts& hosts);

 private:
  friend HostGroups split_by_host(Communicator& comm,
                                  std::chrono::milliseconds later);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::comm
