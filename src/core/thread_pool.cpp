// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/require.h"
#include "thinwire/core/env.h"

namespace thinwire {

namespace {

// Longer spinning starves a framework's own threads on the same cores.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `value` differs from `old` and returns the new value.
std::uint64_t wait_for_change(const std::atomic<std::uint64_t>& value,
                              std::uint64_t old) {
  for (int i = 0; i < kSpins; ++i) {
    const std::uint64_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    pause();
  }
  std::uint64_t now = old;
  while ((now = value.load(std::memory_order_acquire)) == old) value.wait(old);
  return now;
}

}  // namespace

struct ThreadPool::Impl {
  std::size_t threads = 1;

  // The one job in progress. The caller writes it and then increments
  // `generation`.
  const std::function<void(std::size_t)>* body = nullptr;
  std::size_t num_parts = 0;
  std::atomic<std::uint64_t> generation{0};
  std::atomic<std::uint64_t> running{0};
  std::atomic<bool> stopping{false};

  std::mutex error_mutex;
  std::exception_ptr error;
  std::size_t error_part = 0;

  std::vector<std::jthread> workers;  // last: joined before the rest

  void run_parts_of(std::size_t thread) {
    const std::size_t begin = num_parts * thread / threads;
    const std::size_t end = num_parts * (thread + 1) / threads;
    for (std::size_t part = begin; part < end; ++part) {
      try {
        (*body)(part);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error || part < error_part) {
          error = std::current_exception();
          error_part = part;
        }
        return;
      }
    }
  }

  void work(std::size_t thread) {
    std::uint64_t seen = 0;
    while (true) {
      seen = wait_for_change(generation, seen);
      if (stopping.load(std::memory_order_acquire)) return;
      run_parts_of(thread);
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1)
        running.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  require(num_threads >= 0 && num_threads <= 1024, "num_threads",
          "in [0, 1024]", num_threads);
  if (num_threads == 0) num_threads = std::max(1, env::num_threads());
  (void)env::prefetch();
  impl_->threads = static_cast<std::size_t>(num_threads);
  for (std::size_t t = 1; t < impl_->threads; ++t)
    impl_->workers.emplace_back([impl = impl_.get(), t] { impl->work(t); });
}

ThreadPool::~ThreadPool() {
  impl_->stopping.store(true, std::memory_order_release);
  impl_->generation.fetch_add(1, std::memory_order_acq_rel);
  impl_->generation.notify_all();
}

int ThreadPool::num_threads() const noexcept {
  return static_cast<int>(impl_->threads);
}

void ThreadPool::for_each(std::size_t num_parts,
                          const std::function<void(std::size_t)>& body) {
  Impl& impl = *impl_;
  impl.body = &body;
  impl.num_parts = num_parts;
  impl.error = nullptr;
  const bool shared = num_parts > 1 && impl.threads > 1;
  if (shared) {
    impl.running.store(impl.threads - 1, std::memory_order_relaxed);
    impl.generation.fetch_add(1, std::memory_order_acq_rel);
    impl.generation.notify_all();
    impl.run_parts_of(0);
    std::uint64_t left = impl.running.load(std::memory_order_acquire);
    while (left != 0) left = wait_for_change(impl.running, left);
  } else {
    for (std::size_t part = 0; part < num_parts; ++part) body(part);
  }
  if (impl.error) std::rethrow_exception(impl.error);
}

void ThreadPool::for_ranges(
    std::size_t size, std::size_t grain,
    const std::function<void(std::size_t, std::size_t)>& body) {
  if (grain < 1) reject("grain must be >= 1, got 0");
  const std::size_t grains = (size + grain - 1) / grain;
  const std::size_t pieces = std::min(grains, impl_->threads);
  for_each(pieces, [&](std::size_t piece) {
    const std::size_t begin = grains * piece / pieces * grain;
    const std::size_t end =
        std::min(size, grains * (piece + 1) / pieces * grain);
    body(begin, end);
  });
}

}  // namespace thinwire
