// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "exchange/places.h"
#include "exchange/two_phase_exchange.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"

namespace thinwire::exchange {

/// The way of records through the ranks as TwoPhaseExchange has it, for buckets
/// that are there one by one, the last one first, while their owner does
/// something else. Records are encoded and averaged by a thread of this object;
/// collectives are queued by the owner's calls alone, so their order does not
/// depend on how fast any thread is. The first one may be added before it is
/// known whether the result will be used.
class EarlyExchange {
 public:
  /// `comm` and `layout` must outlive it.
  EarlyExchange(comm::Communicator& comm, int num_threads,
                const BlockLayout& layout);
  ~EarlyExchange();
  EarlyExchange(const EarlyExchange&) = delete;
  EarlyExchange& operator=(const EarlyExchange&) = delete;

  /// Local: no bucket has been added. `steps.encode` writes record(), reading
  /// what does not change until the end; steps.deliver is not used.
  void begin(RecordSteps steps);
  [[nodiscard]] bool has_begun() const noexcept { return thread_.joinable(); }
  /// Collective, queued: the next bucket may be encoded, the last one first.
  void add();
  /// How many buckets have not been added.
  [[nodiscard]] std::size_t left() const noexcept {
    return layout_.buckets().size() - added_;
  }
  /// Collective, done on return, after all have been added: `deliver` takes the
  /// results, called by several threads of `pool` at once. `delivered`, unless
  /// empty, is then called with each bucket's blocks.
  void finish(ThreadPool& pool, const std::function<void(Range)>& deliver,
              const std::function<void(Range)>& delivered);
  /// Local: no more of it than is queued; returns when nothing uses memory of
  /// the owner any more. Then begin() may come again.
  void abandon() noexcept;

  /// Where a block's record is written, and then its result.
  [[nodiscard]] std::uint8_t* record(std::size_t block) {
    return records_.at(block);
  }
  [[nodiscard]] Records& records() noexcept { return records_; }
  [[nodiscard]] double wait_seconds() const noexcept { return waited_; }

 private:
  [[nodiscard]] const Bucket& bucket(std::size_t turn) const {
    return layout_.buckets()[layout_.buckets().size() - 1 - turn];
  }
  void serve();
  void encode(const Bucket& bucket);
  void average(std::size_t turn);
  void queue_to_servers(std::size_t turn);
  void queue_from_servers(std::size_t turn);
  /// Queued: what comes behind it waits until `is_ready`, which is asked with
  /// the mutex held.
  void queue_gate(std::function<bool()> is_ready);
  template <class Change>
  void publish(Change&& change);

  comm::Communicator& comm_;
  const BlockLayout& layout_;
  Places places_;  // flat: one piece, of all ranks
  Records records_;
  // What others sent, of turns in turn.
  std::array<Buffer, 2> received_;
  ThreadPool pool_;
  RecordSteps steps_;
  std::vector<comm::Work> local_;  // gates, and notes of arrival
  std::vector<comm::Work> to_servers_;
  std::vector<comm::Work> from_servers_;
  double waited_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  // With the mutex, in turns.
  std::size_t added_ = 0;  // changed by the owner alone
  std::size_t encoded_ = 0;
  std::size_t arrived_ = 0;  // at this rank, to be averaged
  std::size_t averaged_ = 0;
  std::size_t owed_ = 0;  // averages that collectives wait for
  bool is_stopping_ = false;
  std::string failure_;
  std::thread thread_;  // from begin() on
};

}  // namespace thinwire::exchange
