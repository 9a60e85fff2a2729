// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "exchange/codec/codec.h"
#include "exchange/pipeline/cost.h"
#include "exchange/pipeline/places.h"
#include "exchange/pipeline/records.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

/// The directions in which records travel: up to the ranks that serve their
/// blocks, down from these to all, or both.
enum class Direction { kUp, kDown, kBoth };

/// The functions of a pipeline's client for records, block by block. Several
/// threads call these functions at once, for different blocks of one bucket.
struct RunSteps {
  /// Writes this rank's record of a block. Going up, these are the blocks of
  /// its piece; only down, those that it serves.
  std::function<void(std::size_t block, std::uint8_t* record)> encode{};
  /// Is given what the workers sent of a block that this rank serves, in their
  /// order. Writes the record that goes down, if one does.
  std::function<void(std::size_t block, SentRecords sent, std::uint8_t* record)>
      average{};
  /// Is given the result of a block.
  std::function<void(std::size_t block, const std::uint8_t* record)> take{};
  /// If set, they are called on the thread that runs the pipeline just before
  /// records are sent: with each encoded one of a bucket, and with each
  /// averaged one of this rank.
  std::function<void(std::size_t block, const std::uint8_t* record)> encoded{};
  std::function<void(std::size_t block, const std::uint8_t* record)> averaged{};
  /// If set, called on that thread after a bucket's results have been taken.
  std::function<void(Range blocks)> taken{};
  /// If set, called on that thread when a launched run has queued a bucket.
  std::function<void(Range blocks)> queued{};
};

/// The ranks of a pipeline. A hierarchical one has `groups`; it goes both ways,
/// and workers are hosts: each rank of a host exchanges its piece of a bucket
/// with those of the same piece, and results are then exchanged inside hosts.
/// All must outlive the pipeline.
struct Route {
  comm::Communicator& comm;
  const comm::HostGroups* groups = nullptr;  ///< Null: flat.
  /// Only down: owners[s] is the rank that is server s. Empty: rank s.
  std::span<const int> owners{};
};

/// Codecs of the two ways, which must outlive the pipeline.
struct Codecs {
  const Codec& up;
  const Codec& down;
};

/// The memory of buckets in flight. Pipelines whose runs do not overlap may
/// share it.
struct PipelineMemory {
  std::array<Buffer, 2> records{bytes(), bytes()};
  std::array<Buffer, 2> received{bytes(), bytes()};

 private:
  [[nodiscard]] static Buffer bytes() { return Buffer::of<std::uint8_t>(0); }
};

/// The way of records through the ranks, bucket by bucket. It moves bytes
/// without reading them. Buckets become ready one by one, during backward or in
/// a loop, in any order, the same on all ranks. Bucket k + 1 is encoded while
/// bucket k is in flight. There is one message per bucket, way and peer. The
/// records of a bucket lie one after the other in the order of blocks, and so
/// in that of their servers. A server receives whole chunks, ordered by worker.
class Pipeline {
 public:
  struct Options {
    Direction direction = Direction::kBoth;
    /// Keeps the previous run's results, which doubles the memory of records. A
    /// dropped run then leaves no trace, except one that only goes down.
    bool keeps_previous = false;
    std::shared_ptr<PipelineMemory> memory{};  ///< Null: its own.
  };

  /// `pool` and `layout` must outlive it.
  Pipeline(const Route& route, ThreadPool& pool, const BlockLayout& layout,
           const Codecs& codecs, const Options& options);
  ~Pipeline() { drop(); }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Begins a run, of which no bucket is ready. Drops one that has begun.
  /// `way` is the pipeline's direction, or kDown alone. Local.
  void begin(RunSteps steps) { begin(std::move(steps), options_.direction); }
  void begin(RunSteps steps, Direction way);
  [[nodiscard]] bool has_begun() const noexcept { return has_begun_; }
  /// Encodes this bucket and sends it. Waits until the bucket made ready two
  /// calls earlier has arrived, and averages or takes what has. Collective,
  /// queued.
  void ready(std::size_t bucket);
  /// Queues what this rank has still to send of the buckets that are ready, so
  /// that all of them arrive at their servers. Collective, queued.
  void queue_rest() { take_empty_turns(kLag); }
  /// Begins a run, encodes all buckets, and queues all their ways at once. They
  /// travel while the caller computes: the thread of the collectives averages
  /// what has arrived, and calls RunSteps::averaged. finish() waits for results
  /// and takes them. Only if the direction is kBoth. If it throws, the run is
  /// dropped. Collective, queued.
  void launch(RunSteps steps);
  /// Sets RunSteps::take and taken, and first passes them results that have
  /// already arrived, unless the run was launched. If the direction is kBoth, a
  /// run that began without them holds results until then. Local.
  void take_with(
      std::function<void(std::size_t block, const std::uint8_t* record)> take,
      std::function<void(Range)> taken);
  /// Completes the run with the buckets that are ready. If it throws, the run
  /// is dropped. Collective, done on return.
  void finish();
  /// Begins a run, makes all buckets ready in their order, and completes it. If
  /// it throws, the run is dropped. Collective, done on return.
  void run(RunSteps steps) { run(std::move(steps), options_.direction); }
  void run(RunSteps steps, Direction way);
  /// Ends a run. Blocks until the collectives that are queued have completed;
  /// no others start. Local: all ranks do so after the same calls.
  void drop() noexcept;
  /// Drops one bucket that is ready: no function is called with it any more.
  /// Local, like drop().
  void drop(std::size_t bucket) noexcept;

  /// Returns the last run's result of a block, which is 0 before the first
  /// run. Only if the direction is kBoth. During a run it is invalid until it
  /// is taken; with keeps_previous it is that of the run before, as previous()
  /// is.
  [[nodiscard]] const std::uint8_t* result(std::size_t block) const {
    return (is_swapped_ ? previous_ : results_).as<std::uint8_t>().data() +
           down_->begin(block);
  }
  /// Returns the result of the run before: during run t and after it that of
  /// run t - 1. Only with keeps_previous; undefined after a drop.
  [[nodiscard]] const std::uint8_t* previous(std::size_t block) const {
    return previous_.as<std::uint8_t>().data() + down_->begin(block);
  }

  [[nodiscard]] const Places& places() const noexcept { return places_; }
  [[nodiscard]] const BlockLayout& layout() const noexcept { return layout_; }
  /// Returns the time spent waiting for other ranks since construction.
  [[nodiscard]] double wait_seconds() const noexcept { return waited_; }

  /// Returns what this rank sends in one run. Unless `has_groups`, the
  /// collectives are those of all ranks, and owners are in the order of places.
  /// Local.
  [[nodiscard]] static Cost cost(const LayoutCounts& layout,
                                 const comm::RankRoutes& rank,
                                 const Codecs& codecs, Direction way,
                                 bool has_groups = true);

 private:
  // Turns between a use of the wire and the next step of the same bucket.
  static constexpr std::size_t kLag = 2;
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  void take_empty_turns(std::size_t count);
  void take_turn(std::size_t k);
  void launch_bucket(std::size_t k);
  void take_launched();
  // Computes with the buckets of these turns, each of which may be kNone.
  void compute(std::size_t encoded, std::size_t averaged, std::size_t taken);
  void average(std::size_t turn, Range blocks);
  [[nodiscard]] std::size_t turns_until_taken() const;
  // Returns `turn`, or kNone if it has no bucket.
  [[nodiscard]] std::size_t if_filled(std::size_t turn) const {
    return turn < order_.size() && order_[turn] != kNone ? turn : kNone;
  }
  [[nodiscard]] const Bucket& bucket(std::size_t turn) const {
    return layout_.buckets()[order_[turn]];
  }
  [[nodiscard]] static Range blocks_of(const Bucket& bucket) {
    return {bucket.first_block(), bucket.end_block() - bucket.first_block()};
  }
  [[nodiscard]] Range encoded_of(const Bucket& bucket) const {
    return goes_up_ ? places_.piece_of(bucket) : places_.served_of(bucket);
  }
  [[nodiscard]] std::size_t slot(std::size_t turn) const {
    return layout_.buckets().size() > 1 ? turn % 2 : 0;
  }
  // Return the records of one bucket, which follow one another, on its way up,
  // down, and on the first of its ways.
  [[nodiscard]] BucketRecords going_up(std::size_t turn);
  [[nodiscard]] BucketRecords going_down(std::size_t turn);
  [[nodiscard]] BucketRecords first_way(std::size_t turn) {
    return goes_up_ ? going_up(turn) : going_down(turn);
  }
  [[nodiscard]] comm::Work queue_up(std::size_t turn);
  [[nodiscard]] comm::Work queue_down(std::size_t turn);
  [[nodiscard]] comm::Work queue_inside(std::size_t turn);
  void wait(const comm::Work& work);

  comm::Communicator& between_;  // the workers
  comm::Communicator* inside_;   // null: flat
  const std::vector<int> owners_;
  ThreadPool& pool_;
  const BlockLayout& layout_;
  const Options options_;
  const Places places_;
  const std::shared_ptr<const RecordMap> up_;  // down_, if codecs are the same
  const std::shared_ptr<const RecordMap> down_;
  const std::shared_ptr<PipelineMemory> memory_;
  // If both ways: records of all blocks. If one codec has both ways, they are
  // first this rank's own ones.
  Buffer results_;
  Buffer previous_;
  double waited_ = 0;

  // The run that has begun.
  bool has_begun_ = false;
  bool is_launched_ = false;
  bool is_swapped_ = false;  // results_ and previous_
  bool goes_up_ = false;
  bool goes_down_ = false;
  RunSteps steps_;
  // The bucket of each turn, or kNone; and the works of buckets by their turn.
  std::vector<std::size_t> order_;
  std::vector<comm::Work> up_works_;
  std::vector<comm::Work> down_works_;
  comm::Work inside_work_;
  std::vector<comm::Work> launched_works_;  // the others of a launched run
};

}  // namespace thinwire::exchange
