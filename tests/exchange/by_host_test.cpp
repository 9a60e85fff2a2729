// SPDX-License-Identifier: Apache-2.0
// Exchanges by host against the same among hosts alone: G ranks that share a
// host's values are one worker.
#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "exchange/support.h"
#include "support/errors.h"
#include "support/hosts.h"
#include "thinwire/comm/local.h"

namespace thinwire::exchange::by_host_test {
namespace {

constexpr std::uint32_t kSteps = 3;

// A worker's inputs, results and residuals, one step after the other; residuals
// of all elements.
struct Trace {
  std::vector<float> results, worker_error, server_error;
};

std::vector<float> values_of(int worker, std::uint32_t step, std::size_t n) {
  return test::layered_values(n,
                              step * 10 + static_cast<std::uint32_t>(worker));
}

ActiveMask some_masked(const BlockLayout& layout) {
  return {layout, [](std::size_t i) { return i % 5 != 2; }};
}

// Puts the residuals of the blocks that `has` names where their elements lie.
template <class Has>
void place(ConstView residual, const BlockLayout& layout, const Has& has,
           std::vector<float>& to) {
  const std::vector<float> values = test::floats_of(residual);
  std::size_t at = 0;
  for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
    if (!has(b)) continue;
    for (std::size_t i = 0; i < layout.blocks()[b].values.size; ++i)
      to.at(layout.blocks()[b].values.offset + i) = values.at(at++);
  }
  EXPECT_EQ(at, values.size());
}

struct Case {
  std::vector<Range> units = test::awkward_units();
  std::size_t bucket_elements = 2000;
  int threads = 1;
  bool masks = false;
  bool keeps_previous = false;
  DType residual_dtype = DType::kFloat32;
};

test::SignAverage::Options options_of(const Case& c, int world) {
  return {.blocks = {.world_size = world, .bucket_elements = c.bucket_elements},
          .residual_dtype = c.residual_dtype,
          .keeps_previous = c.keeps_previous};
}

// What each host has; ranks of one host are checked to have the same.
std::vector<Trace> traces(const Case& c, int hosts, int ranks_per_host) {
  const std::size_t n = c.units.back().end();
  const int world = hosts * ranks_per_host;
  const Trace zeros{{}, std::vector<float>(n), std::vector<float>(n)};
  std::vector<Trace> of_rank(static_cast<std::size_t>(world), zeros);
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    const comm::HostGroups groups =
        test::split_into_hosts(comm, ranks_per_host);
    ThreadPool pool(c.threads);
    test::SignAverage all(comm, pool, c.units, options_of(c, world),
                          ranks_per_host == 1 ? nullptr : &groups);
    const BlockLayout& layout = all.layout();
    if (c.masks) all.set_active(some_masked(layout));
    Trace& mine = of_rank[static_cast<std::size_t>(comm.rank())];
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      std::vector<float> x = values_of(comm.rank() / ranks_per_host, step, n);
      all.all_reduce(x);
      mine.results.insert(mine.results.end(), x.begin(), x.end());
    }
    place(
        all.worker_error(), layout,
        [&](std::size_t b) { return all.encodes(b); }, mine.worker_error);
    const int own = ranks_per_host == 1 ? comm.rank()
                                        : groups.inside->rank() * hosts +
                                              groups.between->rank();
    place(
        all.server_error(), layout,
        [&](std::size_t b) { return layout.blocks()[b].server == own; },
        mine.server_error);
  });
  std::vector<Trace> of_host(static_cast<std::size_t>(hosts), zeros);
  for (std::size_t r = 0; r < of_rank.size(); ++r) {
    Trace& host = of_host[r / static_cast<std::size_t>(ranks_per_host)];
    EXPECT_EQ(of_rank[r].results, of_rank[0].results);
    host.results = of_rank[r].results;
    for (std::size_t i = 0; i < n; ++i) {
      host.worker_error[i] += of_rank[r].worker_error[i];
      host.server_error[i] += of_rank[r].server_error[i];
    }
  }
  return of_host;
}

void expect_equal(const Case& c, int hosts, int ranks_per_host) {
  const auto want = traces(c, hosts, 1);
  const auto got = traces(c, hosts, ranks_per_host);
  const std::size_t n = c.units.back().end();
  std::vector<float> want_served(n), got_served(n);
  for (std::size_t h = 0; h < want.size(); ++h) {
    EXPECT_EQ(got[h].results, want[h].results);
    EXPECT_EQ(got[h].worker_error, want[h].worker_error);
    for (std::size_t i = 0; i < n; ++i) {
      want_served[i] += want[h].server_error[i];
      got_served[i] += got[h].server_error[i];
    }
  }
  EXPECT_EQ(got_served, want_served);
}

class ByHost : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  [[nodiscard]] static int hosts() { return std::get<0>(GetParam()); }
  [[nodiscard]] static int ranks() { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(HostsAndRanks, ByHost,
                         ::testing::Values(std::tuple(2, 2), std::tuple(4, 1),
                                           std::tuple(2, 4), std::tuple(4, 2),
                                           std::tuple(3, 2), std::tuple(1, 4)));

TEST_P(ByHost, HasTheBitsOfAnExchangeAmongHosts) {
  expect_equal({}, hosts(), ranks());
}

TEST_P(ByHost, HasTheSameBitsForAnyBucketsAndThreads) {
  for (const std::size_t bucket : {1, 1024, 100'000})
    expect_equal({.bucket_elements = bucket, .threads = 3}, hosts(), ranks());
}

TEST_P(ByHost, SupportsMasksAndKeptResults) {
  expect_equal({.masks = true, .keeps_previous = true}, hosts(), ranks());
}

TEST_P(ByHost, Supports16BitResiduals) {
  expect_equal({.residual_dtype = DType::kBFloat16}, hosts(), ranks());
}

TEST_P(ByHost, SupportsOneShortParameterOrNone) {
  for (const std::size_t size : {0, 1, 7, 1025})
    expect_equal({.units = {{0, size}}}, hosts(), ranks());
}

// The transport's own count against the formula of docs/algorithms.md. Between
// hosts each rank sends its piece's records but those that it serves, and those
// H - 1 times: 1 / G of what it would send flat.
void expect_bytes(int hosts, int ranks_per_host, bool is_flat) {
  const std::vector<Range> units = {{0, 200'000}, {200'000, 333}};
  comm::run_local_ranks(hosts * ranks_per_host, [&](comm::Communicator& comm) {
    const comm::HostGroups groups =
        test::split_into_hosts(comm, ranks_per_host);
    ThreadPool pool(1);
    test::SignAverage all(
        comm, pool, units,
        {.blocks = {.world_size = comm.size(), .bucket_elements = 60'000}},
        is_flat ? nullptr : &groups);
    const comm::Communicator& outside = is_flat ? comm : *groups.between;
    const comm::Counters before = outside.counters();
    const auto before_inside = groups.inside->counters().bytes_sent;
    std::vector<float> x(units.back().end(), 1.0f);
    all.all_reduce(x);
    std::uint64_t inside = 0;
    std::uint64_t between = 0;
    double everything = 0;
    const auto h = static_cast<std::uint64_t>(hosts);
    const int own = groups.inside->rank() * hosts + groups.between->rank();
    for (std::size_t b = 0; b < all.layout().blocks().size(); ++b) {
      const Block& block = all.layout().blocks()[b];
      const std::uint64_t record = 4 + 4 * ((block.values.size + 31) / 32);
      everything += static_cast<double>(record);
      if (!all.encodes(b)) continue;
      between += block.server == own ? record * (h - 1) : record;
      inside += record * static_cast<std::uint64_t>(ranks_per_host - 1);
    }
    const comm::Counters after = outside.counters();
    EXPECT_EQ(groups.inside->counters().bytes_sent - before_inside, inside);
    EXPECT_EQ(after.bytes_sent - before.bytes_sent, between);
    const std::size_t buckets = all.layout().buckets().size();
    EXPECT_EQ(after.collectives - before.collectives, 2 * buckets);
    // ... which is within 1 % of this, up to blocks that are out of balance.
    const double closed = 2 * static_cast<double>(h - 1) /
                          static_cast<double>(h) * everything / ranks_per_host;
    const double blocks = is_flat ? hosts - 1 : 2 * hosts;
    EXPECT_NEAR(static_cast<double>(between), closed,
                0.01 * closed + 132 * blocks * static_cast<double>(buckets));
  });
}

TEST_P(ByHost, SendsTheBytesOfTheFormula) {
  expect_bytes(hosts(), ranks(), /*is_flat=*/false);
}

TEST(CompressedAllReduce, SendsTheBytesOfTheFormula) {
  for (const int world : {2, 3, 4, 8}) expect_bytes(world, 1, /*is_flat=*/true);
}

TEST(ByHostChecks, RefusesOtherRanks) {
  const std::vector<Range> units = {{0, 100}};
  comm::run_local_ranks(4, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    comm::HostGroups wrong = test::split_into_hosts(comm, 2);
    wrong.inside = comm.split(comm.rank());
    test::expect_invalid({"got 2 hosts of 1"}, [&] {
      CompressedAllReduce(comm, pool, units, {.blocks = {.world_size = 4}},
                          &wrong);
    });
  });
}

TEST(ByHostChecks, ResidualsAreAddedOnlyInsideThePiece) {
  const std::vector<Range> units = {{0, 8192}};
  comm::run_local_ranks(4, [&](comm::Communicator& comm) {
    const comm::HostGroups groups = test::split_into_hosts(comm, 2);
    ThreadPool pool(1);
    test::SignAverage all(comm, pool, units, {.blocks = {.world_size = 4}},
                          &groups);
    const std::vector<float> ones(1024, 1.0f);
    for (std::size_t b = 0; b < 8; ++b)
      if (all.encodes(b))
        all.add_to_worker_error(b, ones.data(), 2);
      else
        test::expect_invalid(
            {"piece"}, [&] { all.add_to_worker_error(b, ones.data(), 2); });
    EXPECT_EQ(test::floats_of(all.worker_error()),
              std::vector<float>(4096, 2.0f));
  });
}

}  // namespace
}  // namespace thinwire::exchange::by_host_test
