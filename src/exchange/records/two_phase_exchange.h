// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "exchange/records/places.h"
#include "exchange/records/records.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

/// The content of records, which the user of an exchange writes and reads.
/// Several threads call the first three functions at once, for disjoint ranges.
struct RecordSteps {
  /// Writes this rank's records of some blocks.
  std::function<void(Range blocks)> encode;
  /// Writes the averaged records of some blocks that this rank serves.
  std::function<void(const Received& from, Range blocks)> average;
  /// Takes the results of some blocks.
  std::function<void(Range blocks)> deliver;
  /// If set, they are called on the thread that runs the exchange just before
  /// records are sent: with a bucket's encoded ones, and with its averaged ones
  /// of this rank.
  std::function<void(Range blocks)> encoded{};
  std::function<void(Range blocks)> averaged{};
  /// If set, called on that thread after a bucket's results have been taken.
  std::function<void(Range blocks)> delivered{};
};

/// The way of records through the ranks, bucket by bucket: from each worker to
/// the servers, averaged, and back to all. It moves bytes without reading them.
/// Bucket k + 1 is encoded while bucket k is in flight. There are two messages
/// per bucket and peer. In a hierarchical exchange, workers are hosts. Each
/// rank of a host exchanges its piece of a bucket with those of the same piece,
/// and results are then exchanged inside hosts.
class TwoPhaseExchange {
 public:
  /// All references must outlive it; `groups` is null if hosts are flat.
  TwoPhaseExchange(comm::Communicator& comm, const comm::HostGroups* groups,
                   ThreadPool& pool, const BlockLayout& layout,
                   bool keeps_previous);

  /// Blocks until nothing is in flight.
  ~TwoPhaseExchange() { abandon(); }
  TwoPhaseExchange(const TwoPhaseExchange&) = delete;
  TwoPhaseExchange& operator=(const TwoPhaseExchange&) = delete;

  /// Runs an exchange. `steps.encode` writes a block's record() and may read
  /// its result(); `steps.average` writes record(). In a hierarchical exchange
  /// only the blocks of places().piece_of() are encoded. Collective, done on
  /// return.
  void run(RecordSteps steps);

  // ---- the same bucket by bucket, in any order that all ranks share; without
  // keeps_previous
  /// Begins a run, of which no bucket has been added. Local.
  void begin(RecordSteps steps);
  [[nodiscard]] bool has_begun() const noexcept { return has_begun_; }
  /// Encodes this bucket, and waits for the one before the last to be averaged.
  /// Collective, queued.
  void add(std::size_t bucket);
  /// Queues what this rank has still to send, after all buckets have been
  /// added. Waits for the last bucket's records. Collective, queued.
  void queue_rest();
  /// Completes the run, after all buckets have been added. Collective, done on
  /// return.
  void finish();
  /// Ends the run, and blocks until nothing is in flight. Local.
  void abandon() noexcept;

  /// Makes another exchange's records, of the same layout, the last run's
  /// result, and gives it the earlier ones. Without keeps_previous.
  void swap_records(Records& others) noexcept { std::swap(records_, others); }

  /// Runs the way from the servers alone. `average` writes the record() of
  /// blocks that this rank serves. Several threads call it at once, for
  /// disjoint ranges. Collective, done on return.
  void share(const std::function<void(Range blocks)>& average);

  /// Returns where a block's record is written. All are zero at first.
  [[nodiscard]] std::uint8_t* record(std::size_t block) {
    return records_.at(block);
  }
  /// Returns the last run's result of a block. During a run it is that of the
  /// run before until the block's record is written. From then on it is invalid
  /// until it is delivered.
  [[nodiscard]] const std::uint8_t* result(std::size_t block) const {
    return keeps_previous_ && block >= encoded_end_ ? previous_.at(block)
                                                    : records_.at(block);
  }
  /// Returns the result of the run before: during run t and after it that of
  /// run t - 1. Only with keeps_previous.
  [[nodiscard]] const std::uint8_t* previous(std::size_t block) const {
    return previous_.at(block);
  }

  [[nodiscard]] const Places& places() const noexcept { return places_; }

  /// Returns the time spent waiting for other ranks since construction.
  [[nodiscard]] double wait_seconds() const noexcept { return waited_; }

 private:
  // The buckets of one turn between two uses of the wire; null: none.
  struct Turn {
    const Bucket* encoded;
    const Bucket* averaged;
    const Bucket* delivered;
  };
  void take_turns(std::size_t end);
  void take_turn(std::size_t k);
  void compute(const Turn& turn, const Buffer& slot);
  [[nodiscard]] View piece(const Bucket& bucket);
  [[nodiscard]] comm::Work queue_to_servers(const Bucket& bucket, Buffer& slot);
  [[nodiscard]] comm::Work queue_from_servers(const Bucket& bucket);
  [[nodiscard]] comm::Work queue_inside(const Bucket& bucket);
  void wait(const comm::Work& work);

  comm::Communicator& between_;  // the workers
  comm::Communicator* inside_;   // null: flat
  ThreadPool& pool_;
  const BlockLayout& layout_;
  const Places places_;
  // First this rank's encoded values, then, bucket by bucket, the result.
  Records records_;
  bool keeps_previous_;
  Records previous_;
  std::size_t encoded_end_;  // blocks before it are written in this run
  // The records that others sent: one bucket is averaged while the next one
  // arrives.
  std::array<Buffer, 2> received_;
  double waited_ = 0;

  // The run that has begun.
  bool has_begun_ = false;
  RecordSteps steps_;
  std::size_t turn_ = 0;            // the next one
  std::vector<std::size_t> order_;  // buckets, as they were added
  // The collectives of buckets in that order.
  std::vector<comm::Work> to_servers_;
  std::vector<comm::Work> from_servers_;
  comm::Work from_inside_;
};

}  // namespace thinwire::exchange
