// SPDX-License-Identifier: Apache-2.0
#include "exchange/early_exchange.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "comm/wait_ignoring_errors.h"
#include "core/prompt_thread.h"
#include "thinwire/core/error.h"

namespace thinwire::exchange {

namespace {

constexpr std::size_t kBlocksPerGrain = 16;

void for_parts(ThreadPool& pool, Range range,
               const std::function<void(Range)>& body) {
  pool.for_ranges(range.size, kBlocksPerGrain,
                  [&](std::size_t begin, std::size_t end) {
                    body({range.offset + begin, end - begin});
                  });
}

}  // namespace

EarlyExchange::EarlyExchange(comm::Communicator& comm, int num_threads,
                             const BlockLayout& layout)
    : comm_(comm),
      layout_(layout),
      places_(comm, nullptr),
      records_(layout),
      pool_(num_threads) {
  std::size_t most_received = 0;
  for (const Bucket& bucket : layout.buckets())
    most_received =
        std::max(most_received,
                 places_.workers * chunk_bytes(layout, bucket, places_.own));
  for (Buffer& slot : received_) slot = Buffer::of<std::uint8_t>(most_received);
}

EarlyExchange::~EarlyExchange() { abandon(); }

void EarlyExchange::begin(RecordSteps steps) {
  steps_ = std::move(steps);
  added_ = encoded_ = arrived_ = averaged_ = owed_ = 0;
  is_stopping_ = false;
  failure_.clear();
  to_servers_.assign(layout_.buckets().size(), {});
  from_servers_.assign(layout_.buckets().size(), {});
  thread_ = std::thread([this] { serve(); });
}

// While bucket k leaves, bucket k - 1 is averaged, which then comes back; so
// the slot of k - 2 is free.
void EarlyExchange::add() {
  const std::size_t turn = added_;
  publish([&] { added_ = turn + 1; });
  queue_to_servers(turn);
  if (turn >= 1) queue_from_servers(turn - 1);
}

void EarlyExchange::finish(ThreadPool& pool,
                           const std::function<void(Range)>& deliver,
                           const std::function<void(Range)>& delivered) {
  const std::size_t turns = layout_.buckets().size();
  if (turns > 0) queue_from_servers(turns - 1);
  for (std::size_t turn = 0; turn < turns; ++turn) {
    const auto before = std::chrono::steady_clock::now();
    from_servers_[turn].wait();
    waited_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - before)
            .count();
    const Range blocks = places_.piece_of(bucket(turn));
    for_parts(pool, blocks, deliver);
    if (delivered) delivered(blocks);
  }
  abandon();
}

// What is queued is computed, so that it ends on all ranks.
void EarlyExchange::abandon() noexcept {
  if (!thread_.joinable()) return;
  publish([&] { is_stopping_ = true; });
  thread_.join();
  for (const auto* works : {&local_, &to_servers_, &from_servers_})
    for (const comm::Work& work : *works) comm::wait_ignoring_errors(work);
  local_.clear();
}

// ---- the owner's thread: what is queued

template <class Change>
void EarlyExchange::publish(Change&& change) {
  const std::lock_guard lock(mutex_);
  change();
  changed_.notify_all();
}

void EarlyExchange::queue_gate(std::function<bool()> is_ready) {
  local_.push_back(comm_.queue_local([this, is_ready = std::move(is_ready)] {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_ready() || !failure_.empty(); });
    if (!is_ready()) throw Error(ErrorCode::kCommFailure, failure_);
  }));
}

void EarlyExchange::queue_to_servers(std::size_t turn) {
  queue_gate([this, turn] { return encoded_ > turn; });
  const std::vector<std::size_t> send =
      chunk_sizes(layout_, bucket(turn), 0, places_.end());
  const std::vector<std::size_t> receive(send.size(), send[places_.own]);
  to_servers_[turn] = comm_.queue_all_to_all(
      records_.chunks(bucket(turn), 0, places_.end()), send,
      received_[turn % 2].view().subview(0, send.size() * send[places_.own]),
      receive);
  local_.push_back(comm_.queue_local([this] { publish([&] { ++arrived_; }); }));
}

void EarlyExchange::queue_from_servers(std::size_t turn) {
  publish([&] { owed_ = turn + 1; });
  queue_gate([this, turn] { return averaged_ > turn; });
  from_servers_[turn] = comm_.queue_all_gather(
      records_.chunks(bucket(turn), places_.own, places_.own + 1),
      records_.chunks(bucket(turn), 0, places_.end()),
      chunk_sizes(layout_, bucket(turn), 0, places_.end()));
}

// ---- the thread that computes

// What can be encoded goes first: gradients, and other ranks, are held up by
// it. At the end what is queued is waited for, which throws if it has failed.
void EarlyExchange::serve() {
  make_thread_prompt();
  const std::size_t turns = layout_.buckets().size();
  try {
    while (averaged_ < turns) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return is_stopping_ || added_ > encoded_ || arrived_ > averaged_;
      });
      const bool encodes = added_ > encoded_;
      if (is_stopping_ && !encodes && averaged_ >= owed_) return;
      lock.unlock();
      if (encodes) {
        encode(bucket(encoded_));
        publish([&] { ++encoded_; });
      } else {
        average(averaged_);
        publish([&] { ++averaged_; });
      }
    }
  } catch (const std::exception& error) {
    publish([&] { failure_ = error.what(); });
  }
}

void EarlyExchange::encode(const Bucket& bucket) {
  for_parts(pool_, places_.piece_of(bucket), steps_.encode);
  if (steps_.encoded) steps_.encoded(places_.piece_of(bucket));
}

void EarlyExchange::average(std::size_t turn) {
  to_servers_[turn].wait();
  const Received from(layout_, bucket(turn), places_.own,
                      received_[turn % 2].as<std::uint8_t>().data());
  const Range served = places_.served_of(bucket(turn));
  for_parts(pool_, served, [&](Range blocks) { steps_.average(from, blocks); });
  if (steps_.averaged) steps_.averaged(served);
}

}  // namespace thinwire::exchange
