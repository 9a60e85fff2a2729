// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "exchange/places.h"
#include "exchange/records.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

/// The records of one bucket that all workers sent to this rank, its server.
class Received {
 public:
  Received(const BlockLayout& layout, const Bucket& bucket, std::size_t server,
           const std::uint8_t* bytes)
      : layout_(&layout),
        bytes_(bytes),
        begin_(layout.record_begin(bucket.server_begin[server])),
        stride_(chunk_bytes(layout, bucket, server)) {}

  [[nodiscard]] const std::uint8_t* record(std::size_t from,
                                           std::size_t block) const {
    return bytes_ + from * stride_ + (layout_->record_begin(block) - begin_);
  }

 private:
  const BlockLayout* layout_;
  const std::uint8_t* bytes_;
  std::size_t begin_;
  std::size_t stride_;
};

/// What records are made of and what they are for, told by the exchange's user.
/// The first three are called by several threads at once, for disjoint ranges.
struct RecordSteps {
  /// Writes this rank's records of some blocks.
  std::function<void(Range blocks)> encode;
  /// Writes the averaged records of some blocks that this rank serves.
  std::function<void(const Received& from, Range blocks)> average;
  /// Takes the results of some blocks.
  std::function<void(Range blocks)> deliver;
  /// If set, called on the thread that runs the exchange just before records
  /// leave: a bucket's encoded ones, and its averaged ones of this rank.
  std::function<void(Range blocks)> encoded{};
  std::function<void(Range blocks)> averaged{};
  /// If set, called on that thread after a bucket's results have been taken.
  std::function<void(Range blocks)> delivered{};
};

/// The way of records through the ranks, bucket by bucket: from each worker to
/// the servers, averaged, and back to all. It moves bytes and does not know
/// what they say. Bucket k + 1 is encoded while bucket k travels. Two messages
/// per bucket and peer. By host, workers are hosts: each of a host's ranks
/// exchanges its piece of a bucket with those of the same piece, and what they
/// get then goes round inside the hosts.
class TwoPhaseExchange {
 public:
  /// All must outlive it; `groups` is null where flat.
  TwoPhaseExchange(comm::Communicator& comm, const comm::HostGroups* groups,
                   ThreadPool& pool, const BlockLayout& layout,
                   bool keeps_previous);

  /// Waits for what is under way.
  ~TwoPhaseExchange() { abandon(); }
  TwoPhaseExchange(const TwoPhaseExchange&) = delete;
  TwoPhaseExchange& operator=(const TwoPhaseExchange&) = delete;

  /// Collective, done on return. `steps.encode` writes a block's record() and
  /// may read its result(); `steps.average` writes record(). By host, only the
  /// blocks of places().piece_of() are encoded.
  void run(RecordSteps steps);

  // ---- the same bucket by bucket, in any order that all ranks share; without
  // keeps_previous
  /// Local: no bucket has been added.
  void begin(RecordSteps steps);
  [[nodiscard]] bool has_begun() const noexcept { return has_begun_; }
  /// Collective, queued: encodes this bucket, and waits for the one before the
  /// last to be averaged.
  void add(std::size_t bucket);
  /// Collective, done on return, after all buckets have been added.
  void finish();
  /// Local: ends it; returns when nothing is under way.
  void abandon() noexcept;

  /// Another exchange's records of the same layout are the last run's result;
  /// it gets the ones before. Without keeps_previous.
  void swap_records(Records& others) noexcept { std::swap(records_, others); }

  /// Collective, done on return: the way from the servers alone. `average`
  /// writes the record() of blocks that this rank serves; it is called by
  /// several threads at once, for disjoint ranges.
  void share(const std::function<void(Range blocks)>& average);

  /// Where a block's record is written. All zero at first.
  [[nodiscard]] std::uint8_t* record(std::size_t block) {
    return records_.at(block);
  }
  /// The last run's result of a block; during a run that of the run before
  /// until the block's record is written, and of no use from then until it is
  /// delivered.
  [[nodiscard]] const std::uint8_t* result(std::size_t block) const {
    return keeps_previous_ && block >= encoded_end_ ? previous_.at(block)
                                                    : records_.at(block);
  }
  /// The result of the run before: during run t and after it that of run t - 1.
  /// With keeps_previous only.
  [[nodiscard]] const std::uint8_t* previous(std::size_t block) const {
    return previous_.at(block);
  }

  [[nodiscard]] const Places& places() const noexcept { return places_; }

  /// Spent waiting for other ranks since construction.
  [[nodiscard]] double wait_seconds() const noexcept { return waited_; }

 private:
  // What is computed between two goes of the wire; null: nothing.
  struct Turn {
    const Bucket* encoded;
    const Bucket* averaged;
    const Bucket* delivered;
  };
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
  // What others sent: one bucket is averaged while the next one arrives.
  std::array<Buffer, 2> received_;
  double waited_ = 0;

  // Of the run that has begun.
  bool has_begun_ = false;
  RecordSteps steps_;
  std::vector<std::size_t> order_;  // buckets, as they were added
  // In that order.
  std::vector<comm::Work> to_servers_;
  std::vector<comm::Work> from_servers_;
  comm::Work from_inside_;
};

}  // namespace thinwire::exchange
