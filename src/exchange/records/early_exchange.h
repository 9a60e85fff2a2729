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

#include "exchange/records/places.h"
#include "exchange/records/two_phase_exchange.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"

namespace thinwire::exchange {

/// A TwoPhaseExchange for buckets that become ready one by one, the last one
/// first, while their owner does something else. A thread of this object
/// encodes and averages records. Only the owner's calls queue collectives, so
/// their order does not depend on the speed of any thread. The first bucket may
/// be added before it is known whether the result will be used.
class EarlyExchange {
 public:
  /// Both references must outlive it.
  EarlyExchange(comm::Communicator& comm, int num_threads,
                const BlockLayout& layout);
  ~EarlyExchange();
  EarlyExchange(const EarlyExchange&) = delete;
  EarlyExchange& operator=(const EarlyExchange&) = delete;

  /// Begins a run, of which no bucket has been added. `steps.encode` writes
  /// record(), reading what does not change until the end; steps.deliver is not
  /// used. Local.
  void begin(RecordSteps steps);
  [[nodiscard]] bool has_begun() const noexcept { return thread_.joinable(); }
  /// Adds the next bucket, the last one first: it may be encoded. Collective,
  /// queued.
  void add();
  /// Returns how many buckets have not been added.
  [[nodiscard]] std::size_t left() const noexcept {
    return layout_.buckets().size() - added_;
  }
  /// Completes the run, after all buckets have been added: `deliver` takes the
  /// results. Several threads of `pool` call it at once. `delivered`, unless
  /// empty, is then called with each bucket's blocks. Collective, done on
  /// return.
  void finish(ThreadPool& pool, const std::function<void(Range)>& deliver,
              const std::function<void(Range)>& delivered);
  /// Ends the run: only what is queued takes place. Blocks until nothing uses
  /// memory of the owner; then begin() may be called again. Local.
  void abandon() noexcept;

  /// Returns where a block's record is written, and then its result.
  [[nodiscard]] std::uint8_t* record(std::size_t block) {
    return records_.at(block);
  }
  [[nodiscard]] Records& records() noexcept { return records_; }
  [[nodiscard]] const Places& places() const noexcept { return places_; }
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
  /// Queues a gate: collectives behind it wait until `is_ready`, which is
  /// called with the mutex held.
  void queue_gate(std::function<bool()> is_ready);
  template <class Change>
  void publish(Change&& change);

  comm::Communicator& comm_;
  const BlockLayout& layout_;
  Places places_;  // flat: one piece, of all ranks
  Records records_;
  // The records that others sent, in two slots by turns.
  std::array<Buffer, 2> received_;
  ThreadPool pool_;
  RecordSteps steps_;
  std::vector<comm::Work> local_;  // gates, and notes of arrival
  std::vector<comm::Work> to_servers_;
  std::vector<comm::Work> from_servers_;
  double waited_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Numbers of turns, under the mutex.
  std::size_t added_ = 0;  // changed by the owner alone
  std::size_t encoded_ = 0;
  std::size_t arrived_ = 0;  // at this rank, to be averaged
  std::size_t averaged_ = 0;
  std::size_t queued_ = 0;  // averages that collectives wait for
  bool is_stopping_ = false;
  std::string failure_;
  std::thread thread_;  // from begin() on
};

}  // namespace thinwire::exchange
