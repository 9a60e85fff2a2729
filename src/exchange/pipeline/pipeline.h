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

/// Directions in which records are sent: up to the ranks that serve their
/// blocks, down from those ranks to all, or both.
enum class Direction { kUp, kDown, kBoth };

/// Functions with which a pipeline's client processes records block by block.
/// Several threads call them at once, for different blocks of one bucket.
struct RunSteps {
  /// Writes this rank's record of a block. On the way up these are the blocks
  /// of its piece; with kDown they are the blocks that it serves.
  std::function<void(std::size_t block, std::uint8_t* record)> encode{};
  /// Receives the workers' records of a block that this rank serves, in the
  /// order of workers. Writes the record that is sent down, if any.
  std::function<void(std::size_t block, SentRecords sent, std::uint8_t* record)>
      average{};
  /// Receives the result of a block.
  std::function<void(std::size_t block, const std::uint8_t* record)> take{};
  /// If set, called on the pipeline's thread just before records are sent.
  /// `encoded` receives each record that this rank has encoded, `averaged` each
  /// record that it has averaged.
  std::function<void(std::size_t block, const std::uint8_t* record)> encoded{};
  std::function<void(std::size_t block, const std::uint8_t* record)> averaged{};
  /// If set, called on that thread after the results of a bucket have been
  /// taken.
  std::function<void(Range blocks)> taken{};
  /// If set, called on that thread when a launched run has queued a bucket.
  std::function<void(Range blocks)> queued{};
};

/// The ranks of a pipeline. A hierarchical route has `groups`, requires kBoth,
/// and its workers are hosts. Each rank of a host exchanges its piece of a
/// bucket with the ranks that have the same piece. Hosts then exchange the
/// results internally. All members must outlive the pipeline.
struct Route {
  comm::Communicator& comm;
  const comm::HostGroups* groups = nullptr;  ///< Null if flat.
  /// With kDown, owners[s] is the rank of server s. Empty: rank s.
  std::span<const int> owners{};
};

/// Codecs of the two directions, which must outlive the pipeline.
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

/// Sends records through the ranks, bucket by bucket, without interpreting
/// their bytes. Buckets become ready one by one, during backward or in a loop,
/// in any order that is the same on all ranks. Bucket k + 1 is encoded while
/// bucket k is in flight. Each bucket takes one message per direction and peer.
/// The records of a bucket follow one another in the order of blocks, which is
/// also that of their servers. A server receives whole chunks, ordered by
/// worker.
class Pipeline {
 public:
  struct Options {
    Direction direction = Direction::kBoth;
    /// Whether to keep the previous run's results, which doubles the memory of
    /// records. A dropped run then has no effect, except with kDown.
    bool keeps_previous = false;
    std::shared_ptr<PipelineMemory> memory{};  ///< Null: not shared.
  };

  /// `pool` and `layout` must outlive this object.
  Pipeline(const Route& route, ThreadPool& pool, const BlockLayout& layout,
           const Codecs& codecs, const Options& options);
  ~Pipeline() { drop(); }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Begins a run without ready buckets, and drops an unfinished one. `way` is
  /// the pipeline's direction or kDown. Local.
  void begin(RunSteps steps) { begin(std::move(steps), options_.direction); }
  void begin(RunSteps steps, Direction way);
  [[nodiscard]] bool has_begun() const noexcept { return has_begun_; }
  /// Encodes this bucket and sends it. Waits until the bucket made ready two
  /// calls earlier has arrived, and averages or takes the buckets that have.
  /// Collective, queued.
  void ready(std::size_t bucket);
  /// Queues the remaining sends of this rank for the buckets that are ready, so
  /// that all of them arrive at their servers. Collective, queued.
  void queue_rest() { take_empty_turns(kLag); }
  /// Begins a run, encodes all buckets, and queues all their messages at once.
  /// These are in flight while the caller computes: the thread of the
  /// collectives averages the received records and calls RunSteps::averaged.
  /// finish() waits for the results and takes them. Requires kBoth. If it
  /// throws, the run is dropped. Collective, queued.
  void launch(RunSteps steps);
  /// Sets RunSteps::take and taken. Unless the run was launched, first passes
  /// them the results that have already arrived. With kBoth, a run that began
  /// without these functions holds its results until then. Local.
  void take_with(
      std::function<void(std::size_t block, const std::uint8_t* record)> take,
      std::function<void(Range)> taken);
  /// Completes the run with the buckets that are ready. If it throws, the run
  /// is dropped. Collective and blocking.
  void finish();
  /// Begins a run, makes all buckets ready in their order, and completes it. If
  /// it throws, the run is dropped. Collective and blocking.
  void run(RunSteps steps) { run(std::move(steps), options_.direction); }
  void run(RunSteps steps, Direction way);
  /// Ends a run. Blocks until the queued collectives have completed, and starts
  /// no others. Local, but all ranks must do so after the same calls.
  void drop() noexcept;
  /// Drops one ready bucket, with which no function is called any more. Local,
  /// like drop().
  void drop(std::size_t bucket) noexcept;

  /// Returns the last run's result of a block, which is 0 before the first run.
  /// Requires kBoth. During a run it is invalid until it is taken, or with
  /// keeps_previous equal to previous().
  [[nodiscard]] const std::uint8_t* result(std::size_t block) const {
    return (is_swapped_ ? previous_ : results_).as<std::uint8_t>().data() +
           down_->begin(block);
  }
  /// Returns a block's result of the previous run: during run t and after it,
  /// that of run t - 1. Requires keeps_previous; undefined after a drop.
  [[nodiscard]] const std::uint8_t* previous(std::size_t block) const {
    return previous_.as<std::uint8_t>().data() + down_->begin(block);
  }

  [[nodiscard]] const Places& places() const noexcept { return places_; }
  [[nodiscard]] const BlockLayout& layout() const noexcept { return layout_; }
  /// Returns the time spent waiting for other ranks since construction.
  [[nodiscard]] double wait_seconds() const noexcept { return waited_; }

  /// Returns the messages that this rank sends in one run. Unless `has_groups`,
  /// collectives run among all ranks, and owners are in the order of places.
  /// Local.
  [[nodiscard]] static Cost cost(const LayoutCounts& layout,
                                 const comm::RankRoutes& rank,
                                 const Codecs& codecs, Direction way,
                                 bool has_groups = true);

 private:
  // Number of turns between sending a bucket and the next step on it.
  static constexpr std::size_t kLag = 2;
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  void take_empty_turns(std::size_t count);
  void take_turn(std::size_t k);
  void launch_bucket(std::size_t k);
  void take_launched();
  // Processes the buckets of these turns, each of which may be kNone.
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
  // Return the adjacent records of one bucket: on their way up, on their way
  // down, and on the first of the directions used.
  [[nodiscard]] BucketRecords going_up(std::size_t turn);
  [[nodiscard]] BucketRecords going_down(std::size_t turn);
  [[nodiscard]] BucketRecords first_way(std::size_t turn) {
    return goes_up_ ? going_up(turn) : going_down(turn);
  }
  [[nodiscard]] comm::Work queue_up(std::size_t turn);
  [[nodiscard]] comm::Work queue_down(std::size_t turn);
  [[nodiscard]] comm::Work queue_inside(std::size_t turn);
  void wait(const comm::Work& work);

  comm::Communicator& between_;  // among the workers
  comm::Communicator* inside_;   // null if flat
  const std::vector<int> owners_;
  ThreadPool& pool_;
  const BlockLayout& layout_;
  const Options options_;
  const Places places_;
  const std::shared_ptr<const RecordMap> up_;  // down_ if codecs are equal
  const std::shared_ptr<const RecordMap> down_;
  const std::shared_ptr<PipelineMemory> memory_;
  // With kBoth, the records of all blocks. If both directions use one codec,
  // they first hold this rank's records.
  Buffer results_;
  Buffer previous_;
  double waited_ = 0;

  // State of the present run.
  bool has_begun_ = false;
  bool is_launched_ = false;
  bool is_swapped_ = false;  // whether results_ and previous_ are exchanged
  bool goes_up_ = false;
  bool goes_down_ = false;
  RunSteps steps_;
  // The bucket of each turn, or kNone, and the works of each turn's bucket.
  std::vector<std::size_t> order_;
  std::vector<comm::Work> up_works_;
  std::vector<comm::Work> down_works_;
  comm::Work inside_work_;
  std::vector<comm::Work> launched_works_;  // remaining works of a launched run
};

}  // namespace thinwire::exchange
