// SPDX-License-Identifier: Apache-2.0
// Few bits between hosts of several ranks: a host is one worker.
#include <gtest/gtest.h>

#include <cmath>

#include "support/sanitizers.h"
#include "thinwire/comm/hosts.h"
#include "zero/naive_wire.h"
#include "zero/support.h"

namespace thinwire::zero::low_bit_hosts_test {
namespace {

using test::NaiveWire;
using test::two_groups;
using test::ZeroRun;

constexpr unsigned kSteps = 4;

// Ranks per host are powers of two: means of hosts are exact.
struct Case {
  int world = 4;
  int ranks_per_host = 2;
  DType dtype = DType::kFloat32;
  int bits_down = 4;

  [[nodiscard]] int hosts() const { return world / ranks_per_host; }
  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << to_string(c.dtype) << "_w" << c.world << "_g"
               << c.ranks_per_host << "_down" << c.bits_down;
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (const auto& [world, of_host] :
         std::vector<std::pair<int, int>>{{4, 2}, {8, 2}, {8, 4}})
      all.push_back({world, of_host, dtype, world == 4 ? 0 : 4});
  return test::fewer_if_sanitized(all, 2);
}

ZeroOptions options(const Case& c, int stage) {
  return {.stage = stage,
          .dtype = c.dtype,
          .loss_scale = {.initial_scale = 1, .dynamic = false},
          .exchange = {.max_grad_norm = 20,
                       .bucket_elements = 2048,
                       .verify_every = 1},
          .wire = {.bits_up = 4,
                   .bits_down = c.bits_down,
                   .residual_dtype = DType::kFloat32}};
}

// In step 2 the last rank overflows.
std::vector<float> gradient(const Case& c, unsigned step, int rank, int k) {
  auto values = test::normal(
      two_groups().size(),
      100 * step + 10 * static_cast<unsigned>(k) + static_cast<unsigned>(rank));
  for (float& value : values) value = test::rounded_to(c.dtype, value);
  if (step == 2 && rank == c.world - 1) values[1234] = INFINITY;
  return values;
}

// The means of the hosts, unrounded.
NaiveWire::Gradients of_hosts(const Case& c, unsigned step, int k) {
  NaiveWire::Gradients all;
  for (int h = 0; h < c.hosts(); ++h) {
    std::vector<float> mean(two_groups().size());
    for (int l = 0; l < c.ranks_per_host; ++l) {
      const auto own = gradient(c, step, h * c.ranks_per_host + l, k);
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = mean[i] + own[i];
    }
    for (float& m : mean) m = m / static_cast<float>(c.ranks_per_host);
    all.push_back(std::move(mean));
  }
  return all;
}

class LowBitHosts : public ::testing::TestWithParam<Case> {
 protected:
  // Every rank with its communicator by host.
  void run(const std::function<void(comm::Communicator&)>& body) const {
    const Case& c = GetParam();
    test::run_ranks("local", c.world, [&](comm::Communicator& flat) {
      const auto comm = flat.by_host(
          comm::find_hosts(flat, {.ranks_per_host = c.ranks_per_host}));
      body(*comm);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(All, LowBitHosts, ::testing::ValuesIn(cases()),
                         ::testing::PrintToStringParamName());

TEST_P(LowBitHosts, HaveTheBitsOfHostsThatAreWorkers) {
  const Case& c = GetParam();
  for (const int stage : {1, 2})
    for (const bool overlap : {true, false}) {
      auto wire = options(c, stage).wire;
      if (stage == 1 && !overlap) wire.after_skip = AfterSkip::kKeep;
      NaiveWire naive(two_groups(), test::adam_rule(), c.hosts(), c.dtype, wire,
                      test::normal(two_groups().size(), 3));
      std::vector<std::vector<float>> params;
      for (unsigned t = 0; t < kSteps; ++t) {
        naive.step(of_hosts(c, t, 0), 1, 20);
        params.push_back(naive.params);
      }
      run([&](comm::Communicator& comm) {
        ZeroOptions with = options(c, stage);
        with.overlap = overlap;
        ZeroRun run(comm, two_groups(), test::adam_rule(), with);
        for (unsigned t = 0; t < kSteps; ++t) {
          EXPECT_EQ(run.step(gradient(c, t, comm.rank(), 0)).applied, t != 2);
          EXPECT_EQ(run.values(), params[t]) << "step " << t;
        }
        EXPECT_EQ(run.masters(), naive.masters);
      });
    }
}

TEST_P(LowBitHosts, AddBackwardsUpInTheirResiduals) {
  const Case& c = GetParam();
  for (const bool is_known : {true, false}) {
    NaiveWire naive(two_groups(), test::adam_rule(), c.hosts(), c.dtype,
                    options(c, 2).wire, test::normal(two_groups().size(), 3));
    std::vector<std::vector<float>> params;
    for (unsigned t = 0; t < kSteps; ++t) {
      const auto before = naive.residuals;
      naive.add(of_hosts(c, t, 0), 1);
      naive.step(of_hosts(c, t, 1), 1, 20);
      if (t == 2 && c.dtype == DType::kFloat16) naive.residuals = before;
      params.push_back(naive.params);
    }
    run([&](comm::Communicator& comm) {
      ZeroRun run(comm, two_groups(), test::adam_rule(), options(c, 2));
      for (unsigned t = 0; t < kSteps; ++t) {
        for (const int k : {0, 1})
          run.backward(gradient(c, t, comm.rank(), k),
                       {.is_first = k == 0, .is_last = is_known && k == 1});
        EXPECT_EQ(run.optimizer->step().applied, t != 2);
        EXPECT_EQ(run.values(), params[t]) << "step " << t;
      }
    });
  }
}

// A host's ranks keep its residuals once, between them.
TEST_P(LowBitHosts, AContinuedRunHasTheSameBits) {
  const Case& c = GetParam();
  run([&](comm::Communicator& comm) {
    ZeroRun run(comm, two_groups(), test::adam_rule(), options(c, 1));
    for (unsigned t = 0; t < 3; ++t) run.step(gradient(c, t, comm.rank(), 0));
    const StateDict state = copy_of(run.optimizer->state());
    std::vector<std::int64_t> kept = {
        static_cast<std::int64_t>(state.array("worker_error").size())};
    comm.all_reduce(kept);
    EXPECT_EQ(kept[0], c.hosts() * static_cast<int>(run.layout.size()));
    ZeroRun other(comm, two_groups(), test::adam_rule(), options(c, 1));
    kernels::convert(run.params.view(), other.params.view());
    other.optimizer->load_state_dict(state);
    for (unsigned t = 3; t < 5; ++t) {
      run.step(gradient(c, t, comm.rank(), 0));
      other.step(gradient(c, t, comm.rank(), 0));
      EXPECT_EQ(other.values(), run.values());
    }
  });
}

TEST(LowBitHostsCost, ACardIsCrossedOnce) {
  // Whole buckets: gathers of 64 KiB and less go to all ranks directly.
  const auto layout = ParameterLayout::of({{"a", {400'000}}, {"b", {255'360}}});
  const auto n = static_cast<double>(layout.size());
  test::run_ranks("local", 4, [&](comm::Communicator& flat) {
    const auto comm =
        flat.by_host(comm::find_hosts(flat, {.ranks_per_host = 2}));
    ZeroRun run(*comm, layout, test::adam_rule(),
                {.stage = 2,
                 .dtype = DType::kBFloat16,
                 .exchange = {.bucket_elements = 1 << 16},
                 .wire = {.bits_up = 4, .bits_down = 8}});
    const comm::Counters before = comm->counters();
    run.step(std::vector<float>(layout.size(), 0.25f));
    // Half of what a host has, shared out over two ranks; squares, which are
    // few, to both ranks of the other host.
    const double cells = n / 1024;
    const double want =
        (n * (4 + 8) / 8 + 2 * 4 * cells) / 4 + 2 * 8 * cells / 4;
    EXPECT_NEAR(static_cast<double>(comm->counters().bytes_between_hosts -
                                    before.bytes_between_hosts),
                want, 0.01 * want);
  });
}

}  // namespace
}  // namespace thinwire::zero::low_bit_hosts_test
