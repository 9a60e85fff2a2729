// SPDX-License-Identifier: Apache-2.0

#include <memory>
#include <vector>

#include "apps/thinwire/bench/rows.h"
#include "exchange/exact_average.h"
#include "optim/step_pieces.h"
#include "thinwire/exchange/compressed_all_reduce.h"
#include "thinwire/kernels/processor.h"

namespace thinwire::apps::bench {

namespace {

constexpr std::size_t kBucketElements = std::size_t{1} << 20;

// Sums as optim::DataParallel sums gradients.
std::function<void()> prepare_all_reduce(comm::Communicator& comm,
                                         std::size_t elements, ThreadPool&) {
  // The values are zeros, because sums of sums would overflow.
  auto values = std::make_shared<Buffer>(Buffer::of<float>(elements));
  return [values, &comm] {
    const Range all{0, values->size()};
    for (const comm::Work& work : exchange::queue_sums(
             comm, values->view(), std::span(&all, 1), kBucketElements))
      work.wait();
  };
}

struct CompressedWork {
  CompressedWork(comm::Communicator& comm, std::size_t elements,
                 ThreadPool& pool)
      : unit{0, elements},
        exchange(comm, pool, std::span(&unit, 1),
                 {.blocks = {.world_size = comm.size(),
                             .bucket_elements = kBucketElements}}),
        values(
            random_values(elements, static_cast<std::uint32_t>(comm.rank()))) {}

  Range unit;
  exchange::CompressedAllReduce exchange;
  Buffer values;
};

std::function<void()> prepare_compressed(comm::Communicator& comm,
                                         std::size_t elements,
                                         ThreadPool& pool) {
  auto work = std::make_shared<CompressedWork>(comm, elements, pool);
  return [work] { work->exchange.all_reduce(work->values.view()); };
}

// Sends the same number of bytes from every rank to the others, in one exchange
// and without arithmetic or copies.
std::function<void()> raw_transfer(comm::Communicator& comm,
                                   std::uint64_t bytes) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t piece = bytes / (ranks - 1);
  std::vector<std::size_t> counts(ranks, piece);
  counts[static_cast<std::size_t>(comm.rank())] = 0;
  const auto memory = [&] {
    return std::make_shared<Buffer>(
        Buffer::of<std::uint8_t>(piece * (ranks - 1)));
  };
  return [&comm, counts, sent = memory(), received = memory()] {
    comm.all_to_all(sent->view(), counts, received->view(), counts);
  };
}

// Returns the bytes of the rank that sends most, because chunks may differ by a
// block.
std::uint64_t most_bytes_sent(comm::Communicator& comm,
                              const std::function<void()>& body) {
  const std::uint64_t before = comm.counters().bytes_sent;
  body();
  auto bytes = static_cast<std::int64_t>(comm.counters().bytes_sent - before);
  comm.all_reduce(std::span(&bytes, 1), comm::ReduceOp::kMax);
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace

std::span<const ExchangeRow> exchange_rows() {
  static const std::vector<ExchangeRow> rows = {
      {"exchange/all_reduce_fp32", prepare_all_reduce},
      {"exchange/compressed", prepare_compressed},
  };
  return rows;
}

double slowest_seconds(comm::Communicator& comm,
                       const std::function<void()>& body) {
  comm.barrier();
  double seconds = seconds_of(body);
  comm.all_reduce(std::span(&seconds, 1), comm::ReduceOp::kMax);
  return seconds;
}

Result measure(comm::Communicator& comm, const ExchangeRow& row,
               const Settings& settings) {
  ThreadPool pool(settings.threads);
  const auto run = row.prepare(comm, settings.elements, pool);
  const std::uint64_t bytes = most_bytes_sent(comm, run);

  const auto transfer = raw_transfer(comm, bytes);
  const bool knows_link = settings.link_gbps > 0;
  if (!knows_link) transfer();
  std::vector<double> times, limits;
  for (int round = 0; round < settings.rounds; ++round) {
    const auto measure_limit = [&] {
      limits.push_back(knows_link ? static_cast<double>(bytes) * 8 /
                                        (settings.link_gbps * 1e9)
                                  : slowest_seconds(comm, transfer));
    };
    if (round % 2 == 1) measure_limit();
    times.push_back(slowest_seconds(comm, run));
    if (round % 2 == 0) measure_limit();
  }

  return {.name = row.name,
          .elements = settings.elements,
          .threads = settings.threads,
          .prefetch = kernels::prefetches(),
          .seconds = median(times),
          .bytes_per_element = static_cast<double>(bytes) /
                               static_cast<double>(settings.elements),
          .limit = knows_link ? "link" : "raw transfer",
          .of_limit = median_ratio(limits, times),
          .wire = Result::Wire{.ranks = comm.size(),
                               .bytes_sent = bytes,
                               .limit_ratio = median_ratio(times, limits)}};
}

}  // namespace thinwire::apps::bench
