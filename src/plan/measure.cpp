// SPDX-License-Identifier: Apache-2.0
#include "thinwire/plan/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "core/require.h"
#include "plan/measured_kernels.h"
#include "thinwire/core/buffer.h"

namespace thinwire::plan {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kShort = 8, kLong = 1024;  // bytes of a message
constexpr int kRepeats = 20;                     // of a short message per round

void validate(const MeasureOptions& options) {
  require(options.rounds >= 1, "rounds", ">= 1", options.rounds);
  require(options.elements >= 1, "elements", ">= 1", options.elements);
  require(options.message_bytes >= 1, "message_bytes", ">= 1",
          options.message_bytes);
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Median and spread of the rounds of one measurement.
struct Rounds {
  double median = 0;
  double spread = 0;
};

// Summarizes the rounds. If a single call was much faster than their median,
// other programs have slowed down all rounds. The spread shows this slowdown,
// although the rounds agree.
Rounds summary_of(std::vector<double> values, double fastest) {
  constexpr double kMuchFaster = 2;
  std::sort(values.begin(), values.end());
  const std::size_t last = values.size() - 1;
  const double median = values[values.size() / 2];
  double between = values[last - last / 4] - values[last / 4];
  if (median > kMuchFaster * fastest)
    between = std::max(between, median - fastest);
  return {median, median > 0 ? between / median : 0};
}

// Measures the seconds of one call. The first round warms up.
Rounds seconds_of(int rounds, int repeats, const std::function<void()>& call) {
  std::vector<double> seconds;
  double fastest = std::numeric_limits<double>::infinity();
  for (int round = 0; round <= rounds; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < repeats; ++i) {
      const auto start = Clock::now();
      call();
      fastest = std::min(fastest, seconds_since(start));
    }
    if (round > 0) seconds.push_back(seconds_since(begin) / repeats);
  }
  return summary_of(std::move(seconds), fastest);
}

double largest(comm::Communicator& comm, double value) {
  comm.all_reduce(View(&value, 1, DType::kFloat64), comm::ReduceOp::kMax);
  return value;
}

// Returns the processor seconds of this process's threads so far.
double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// Latency and rate of one collective among the ranks of a group.
struct Link {
  double latency = 0;
  double message = 0;
  double bytes_per_second = 0;  // per rank
  double processor_seconds_per_byte = 0;
  LinkSpread spread{};
};

// Measures a link in all groups at once. `all_ranks` is the number of ranks in
// all groups together.
Link measure_link(comm::Communicator& group, int all_ranks,
                  const MeasureOptions& options) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto peers = static_cast<double>(ranks - 1);
  double used = 0;  // processor seconds of the last all-to-alls
  const auto all_to_all = [&](std::size_t bytes, int rounds, int repeats) {
    const Buffer from(bytes * (ranks - 1), DType::kUInt8);
    Buffer to(bytes * (ranks - 1), DType::kUInt8);
    std::vector<std::size_t> counts(ranks, bytes);
    counts[static_cast<std::size_t>(group.rank())] = 0;  // nothing to itself
    group.barrier();
    const double before = processor_seconds();
    const Rounds seconds = seconds_of(rounds, repeats, [&] {
      group.all_to_all(from.view(), counts, to.view(), counts);
    });
    used = processor_seconds() - before;
    return seconds;
  };
  const std::size_t piece =
      std::max<std::size_t>(options.message_bytes / (ranks - 1), 1);
  const double sent = static_cast<double>(piece) * peers;
  const auto [brief, latency_spread] =
      all_to_all(kShort, options.rounds, kRepeats);
  const auto [longer, message_spread] =
      all_to_all(kLong, options.rounds, kRepeats);
  const auto [bulk, rate_spread] = all_to_all(piece, options.rounds, 1);
  // Local ranks of all groups are threads of one process and share its time.
  // The warm-up adds one round.
  const double sharing = group.backend() == "local" ? all_ranks : 1;
  Link link;
  link.spread = {rate_spread, latency_spread, message_spread};
  link.processor_seconds_per_byte =
      used / sharing / (options.rounds + 1) / sent;
  link.bytes_per_second = sent / std::max(bulk - brief, bulk * 0.01);
  const double wire = static_cast<double>(kLong) / link.bytes_per_second;
  link.message = std::max((longer - brief) / peers - wire, 0.0);
  link.latency = std::max(brief - peers * link.message, 0.0);
  return link;
}

// Returns the slowest group's link. Every rank is in some group.
Link slowest(comm::Communicator& all, const Link& own) {
  return {largest(all, own.latency),
          largest(all, own.message),
          1 / largest(all, 1 / own.bytes_per_second),
          largest(all, own.processor_seconds_per_byte),
          {largest(all, own.spread.rate), largest(all, own.spread.latency),
           largest(all, own.spread.message)}};
}

}  // namespace

MeasuredNetwork measure_network(comm::Communicator& comm,
                                const comm::Hosts& hosts,
                                const MeasureOptions& options) {
  validate(options);
  MeasuredNetwork network;
  network.ranks = comm.size();
  network.is_framed = false;
  if (comm.size() == 1) return network;
  std::unique_ptr<comm::Communicator> within, across;
  if (hosts.size > 1 && hosts.ranks_per_host > 1) {
    network.ranks_per_host = hosts.ranks_per_host;
    within = comm.split(hosts.index);
    across = comm.split(hosts.local_rank, hosts.index);
    const Link inside =
        slowest(comm, measure_link(*within, comm.size(), options));
    network.inner_bytes_per_second = inside.bytes_per_second;
    network.inner_latency_seconds = inside.latency;
    network.inner_message_seconds = inside.message;
    network.inner_processor_seconds_per_byte =
        inside.processor_seconds_per_byte;
    network.inner_spread = inside.spread;
  }
  const Link between = slowest(
      comm, measure_link(across ? *across : comm, comm.size(), options));
  network.gbps = between.bytes_per_second * network.ranks_per_host * 8e-9;
  network.latency_seconds = between.latency;
  network.message_seconds = between.message;
  network.processor_seconds_per_byte = between.processor_seconds_per_byte;
  network.spread = between.spread;
  return network;
}

MeasuredCompute measure_compute(comm::Communicator& comm,
                                const MeasureOptions& options) {
  validate(options);
  MeasuredKernels kernels(options.elements, comm.size(), options.num_threads);
  std::vector<std::vector<double>> seconds(std::size(kFigures));
  // Runs all kernels in every round. The data of one kernel has then left the
  // caches before it is used again, as in a step. The first round warms up.
  for (int round = 0; round <= options.rounds; ++round)
    for (std::size_t k = 0; k < std::size(kFigures); ++k) {
      comm.barrier();
      const auto begin = Clock::now();
      (kernels.*kFigures[k].kernel)();
      if (round > 0) seconds[k].push_back(seconds_since(begin));
    }
  MeasuredCompute compute;
  for (std::size_t k = 0; k < std::size(kFigures); ++k) {
    const double fastest = std::ranges::min(seconds[k]);
    const Rounds own = summary_of(std::move(seconds[k]), fastest);
    const auto figure = kFigures[k].value;
    compute.*figure =
        largest(comm, own.median) / static_cast<double>(options.elements);
    compute.spread.*figure = largest(comm, own.spread);
  }
  return compute;
}

}  // namespace thinwire::plan
