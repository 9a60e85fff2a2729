// SPDX-License-Identifier: Apache-2.0
// Experts in few bits: the dense parameters and each expert are plain loops of
// their own, that of an expert over the ranks which hold it, with a mean over
// the whole batch.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <utility>

#include "support/sanitizers.h"
#include "thinwire/comm/hosts.h"
#include "zero/naive_wire.h"
#include "zero/support.h"

namespace thinwire::zero::low_bit_experts_test {
namespace {

using test::NaiveWire;
using test::ZeroRun;
using Floats = std::vector<float>;

constexpr unsigned kSteps = 5;
constexpr auto kFloat32 = DType::kFloat32;

// The expert lies between dense parameters, off the grid.
ParameterLayout with_expert() {
  return ParameterLayout::of({{"before", {1000}, 0},
                              {"expert", {2301}, 1},
                              {"none", {0}, 1},
                              {"after", {2100}, 0}});
}
constexpr Range kExpert = {1000, 2301};

struct Case {
  int stage = 1;
  bool overlap = true;
  unsigned backwards = 1;
  bool is_known = true;  // the last backward, when it begins
  DType dtype = kFloat32;
  AfterSkip after = AfterSkip::kAuto;
  int world = 4;
  int of_host = 1;          // ranks of a host, for dense parameters
  int experts_of_host = 1;  // the same for experts
  int experts = 2;
  int bits_down = 4;

  [[nodiscard]] bool is_on_hosts() const { return experts_of_host > 1; }
  [[nodiscard]] int holders() const { return world / experts; }
  // Neighbours hold the same one where they share it by host.
  [[nodiscard]] int expert_of(int rank) const {
    return is_on_hosts() ? rank / holders() : rank % experts;
  }
  [[nodiscard]] WireOptions wire() const {
    return {.bits_up = 4,
            .bits_down = bits_down,
            .residual_dtype = backwards > 1 ? kFloat32 : DType::kBFloat16,
            .after_skip = after};
  }

  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << "stage" << c.stage << (c.overlap ? "" : "_waiting") << "_k"
               << c.backwards << (c.is_known ? "" : "_unknown")
               << to_string(c.dtype) << "_after" << static_cast<int>(c.after)
               << "_w" << c.world << "g" << c.of_host << c.experts_of_host
               << "_e" << c.experts << "_down" << c.bits_down;
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int stage : {1, 2})
    for (const bool overlap : {true, false})
      for (const unsigned backwards : {1u, 2u}) {
        Case c{.stage = stage, .overlap = overlap, .backwards = backwards};
        all.push_back(c);
        c.dtype = DType::kBFloat16;
        c.after = AfterSkip::kKeep;
        c.bits_down = 0;
        all.push_back(c);
        // One of the groups by host, the other one flat; then both.
        c = {.stage = stage, .overlap = overlap, .backwards = backwards};
        c.of_host = 2;
        all.push_back(c);
        c.of_host = 1;
        c.world = 8;
        c.experts_of_host = 2;
        all.push_back(c);
        c.of_host = 2;
        c.dtype = DType::kFloat16;
        c.is_known = backwards == 1;
        all.push_back(c);
      }
  all.push_back({.stage = 2, .backwards = 2, .is_known = false});
  all.push_back({.stage = 1, .experts = 1});
  // Other shapes of hosts, types and bits. A host's mean of 2^k ranks is exact.
  for (const int stage : {1, 2})
    for (const auto& [of_host, dtype] : {std::pair(4, kFloat32),
                                         {2, DType::kBFloat16},
                                         {4, DType::kFloat16}}) {
      Case c{.stage = stage, .backwards = 2, .dtype = dtype};
      c.world = 8;
      c.of_host = of_host;
      c.bits_down = of_host == 4 ? 4 : 0;
      all.push_back(c);
    }
  return test::fewer_if_sanitized(all, 4);
}

// One rank's of one backward. In step 1 an expert overflows on one rank, in
// step 3 a dense parameter on another.
Floats gradient(const Case& c, unsigned step, unsigned k, int rank) {
  Floats values = test::normal(
      with_expert().size(), 100 * step + 10 * k + static_cast<unsigned>(rank));
  for (float& value : values) value = test::rounded_to(c.dtype, value);
  const bool is_last = k + 1 == c.backwards;
  if (step == 1 && rank == 1 && is_last) values[1700] = INFINITY;
  if (step == 3 && rank == c.world - 2 && is_last) values[4000] = NAN;
  return values;
}

Floats sum_of(const std::vector<Floats>& all) {
  Floats sum(all[0].size());
  for (const Floats& own : all)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + own[i];
  return sum;
}

// What the workers of a group encode: of ranks, or the means of hosts; 0 where
// parameters are of another group.
NaiveWire::Gradients of_workers(const std::vector<Floats>& of_ranks,
                                int of_host, bool is_expert) {
  NaiveWire::Gradients all;
  const auto each = static_cast<std::size_t>(of_host);
  for (std::size_t first = 0; first < of_ranks.size(); first += each) {
    const auto at = of_ranks.begin() + static_cast<std::ptrdiff_t>(first);
    Floats mean = of_host == 1 ? *at : sum_of({at, at + of_host});
    for (std::size_t i = 0; i < mean.size(); ++i) {
      const bool is_own = (i >= kExpert.offset && i < kExpert.end());
      mean[i] = is_own == is_expert ? mean[i] / static_cast<float>(of_host) : 0;
    }
    all.push_back(std::move(mean));
  }
  return all;
}

// One shard group in plain loops.
struct Naive {
  Naive(const Case& c, std::vector<int> of, int per_host, bool is_expert)
      : ranks(std::move(of)),
        of_host(per_host),
        expert(is_expert),
        loops(with_expert(), rule(), static_cast<int>(ranks.size()) / per_host,
              c.dtype, wire_of(c), test::normal(with_expert().size(), 3)) {
    loops.batch_ranks = static_cast<double>(c.world) / per_host;
  }

  static MakeRule rule() {
    return test::adam_rule({.learning_rate = 0.01, .weight_decay = 0.1});
  }
  // Gradients that have not been sent cannot be lost.
  static WireOptions wire_of(const Case& c) {
    WireOptions wire = c.wire();
    if (c.stage == 1 && !c.overlap) wire.after_skip = AfterSkip::kKeep;
    return wire;
  }

  // False: not finite.
  bool reduce(const Case& c, unsigned step) {
    before = loops.residuals;
    std::vector<std::vector<Floats>> backwards;
    for (unsigned k = 0; k < c.backwards; ++k) {
      backwards.emplace_back();
      for (const int rank : ranks)
        backwards.back().push_back(gradient(c, step, k, rank));
    }
    if (c.stage == 1) {
      std::vector<Floats> sums;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        std::vector<Floats> own;
        for (const auto& backward : backwards) own.push_back(backward[r]);
        sums.push_back(own.size() == 1 ? own[0] : sum_of(own));
      }
      return loops.reduce(of_workers(sums, of_host, expert), 1);
    }
    for (std::size_t k = 0; k + 1 < backwards.size(); ++k)
      loops.add(of_workers(backwards[k], of_host, expert), 1);
    return loops.reduce(of_workers(backwards.back(), of_host, expert), 1);
  }
  void skip(const Case& c) {
    loops.skip();
    if (wire_of(c).keeps_residuals(c.dtype)) loops.residuals = before;
  }

  std::vector<int> ranks;
  int of_host;
  bool expert;
  NaiveWire loops;
  NaiveWire::Gradients before;
};

// One rank's results of a step.
struct Seen {
  optim::StepReport report;
  Floats params;
  Floats masters;
};

ZeroOptions options_of(const Case& c, comm::Communicator* holders) {
  return {.stage = c.stage,
          .dtype = c.dtype,
          .loss_scale = {.initial_scale = 1, .dynamic = false},
          .exchange = {.max_grad_norm = 20, .bucket_elements = 2048},
          .wire = c.wire(),
          .overlap = c.overlap,
          .experts = {{.group = 1, .comm = holders}}};
}

std::unique_ptr<comm::Communicator> grouped(comm::Communicator& comm,
                                            int of_host) {
  return comm.by_host(comm::find_hosts(comm, {.ranks_per_host = of_host}));
}

// Calls body(the communicator of all, that of this rank's expert).
void on_ranks(
    const Case& c,
    const std::function<void(comm::Communicator&, comm::Communicator&)>& body) {
  test::run_ranks("local", c.world, [&](comm::Communicator& flat) {
    const auto all = grouped(flat, c.of_host);
    const auto holders = flat.split(c.expert_of(flat.rank()));
    const auto own = grouped(*holders, c.experts_of_host);
    body(*all, *own);
  });
}

std::vector<std::vector<Seen>> trained(const Case& c) {
  std::vector<std::vector<Seen>> seen(
      kSteps, std::vector<Seen>(static_cast<std::size_t>(c.world)));
  on_ranks(c, [&](comm::Communicator& all, comm::Communicator& holders) {
    ZeroRun run(all, with_expert(), Naive::rule(), options_of(c, &holders));
    for (unsigned t = 0; t < kSteps; ++t) {
      for (unsigned k = 0; k < c.backwards; ++k)
        run.backward(gradient(c, t, k, all.rank()),
                     {.is_first = k == 0,
                      .is_last = c.is_known && k + 1 == c.backwards});
      Seen& own = seen[t][static_cast<std::size_t>(all.rank())];
      own.report = run.optimizer->step();
      own.params = run.values();
      own.masters = run.masters();
    }
  });
  return seen;
}

class LowBitExperts : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, LowBitExperts, ::testing::ValuesIn(cases()),
                         ::testing::PrintToStringParamName());

std::vector<Naive> groups_of(const Case& c) {
  std::vector<int> everybody;
  std::vector<std::vector<int>> holders(static_cast<std::size_t>(c.experts));
  for (int r = 0; r < c.world; ++r) {
    everybody.push_back(r);
    holders[static_cast<std::size_t>(c.expert_of(r))].push_back(r);
  }
  std::vector<Naive> groups;
  groups.emplace_back(c, everybody, c.of_host, false);
  for (const auto& ranks : holders)
    groups.emplace_back(c, ranks, c.experts_of_host, true);
  return groups;
}

void expect_same_bits(const Naive& dense, const Naive& expert,
                      const Seen& seen) {
  Floats params = dense.loops.params, masters = dense.loops.masters;
  for (std::size_t i = kExpert.offset; i < kExpert.end(); ++i) {
    params[i] = expert.loops.params[i];
    masters[i] = expert.loops.masters[i];
  }
  EXPECT_EQ(seen.params, params);
  EXPECT_EQ(seen.masters, masters);
}

TEST_P(LowBitExperts, HaveTheBitsOfPlainLoops) {
  const Case& c = GetParam();
  const auto seen = trained(c);
  std::vector<Naive> groups = groups_of(c);
  for (unsigned t = 0; t < kSteps; ++t) {
    const bool applied = t != 1 && t != 3;
    bool is_finite = true;
    double squares = 0;
    for (Naive& group : groups) {
      is_finite = group.reduce(c, t) && is_finite;
      squares += kernels::sum_of_squares(group.loops.mean);
    }
    EXPECT_EQ(is_finite, applied);
    const double clip = seen[t][0].report.clip_factor;
    for (Naive& group : groups)
      if (applied)
        group.loops.update(clip);
      else
        group.skip(c);
    for (int r = 0; r < c.world; ++r) {
      SCOPED_TRACE(testing::Message() << "step " << t << ", rank " << r);
      const Seen& own = seen[t][static_cast<std::size_t>(r)];
      ASSERT_EQ(own.report.applied, applied);
      EXPECT_EQ(own.report.residuals_cleared,
                !applied && !Naive::wire_of(c).keeps_residuals(c.dtype));
      if (applied) {
        EXPECT_NEAR(own.report.grad_norm, std::sqrt(squares),
                    1e-12 * std::sqrt(squares));
        EXPECT_EQ(own.report.clip_factor, clip);
        EXPECT_LT(clip, 1);
      }
      expect_same_bits(
          groups[0], groups[1 + static_cast<std::size_t>(c.expert_of(r))], own);
    }
  }
}

// What one rank alone holds does not travel, whatever the bits.
TEST(LowBitExperts, OfOneRankEachAreExact) {
  for (const int stage : {1, 2})
    for (const DType dtype : {kFloat32, DType::kBFloat16}) {
      Case c{.stage = stage, .dtype = dtype, .experts = 4};
      on_ranks(c, [&](comm::Communicator& all, comm::Communicator& holders) {
        ZeroOptions options = options_of(c, &holders);
        options.exchange.max_grad_norm = 0;
        ZeroRun run(all, with_expert(), Naive::rule(), options);
        options.wire = {};
        ZeroRun exact(all, with_expert(), Naive::rule(), options);
        for (unsigned t = 0; t < kSteps; ++t) {
          const auto own = gradient(c, t, 0, all.rank());
          EXPECT_EQ(run.step(own).applied, exact.step(own).applied);
          EXPECT_EQ(run.optimizer->whole_values().parameter("expert"),
                    exact.optimizer->whole_values().parameter("expert"));
        }
        EXPECT_NE(run.optimizer->whole_values().parameter("after"),
                  exact.optimizer->whole_values().parameter("after"));
      });
    }
}

// Restored residuals of larger groups are divided by the whole batch.
TEST(LowBitExperts, OfOneRankEachAddTheirShareOfRestoredResiduals) {
  const Case c{.stage = 2, .experts = 4};
  on_ranks(c, [&](comm::Communicator& all, comm::Communicator& holders) {
    ZeroRun run(all, with_expert(), Naive::rule(), options_of(c, &holders));
    StateDict state = copy_of(run.optimizer->state());
    const Floats kept = test::normal(kExpert.size, 5);
    state.put("experts.1.worker_error", kept);
    state.put_integer("experts.1.bits_up", 4);
    run.optimizer->adopt(std::move(state))();
    const Floats own = gradient(c, 0, 0, all.rank());
    run.backward(own);
    const auto added = run.optimizer->whole_values().gradient("expert");
    for (std::size_t i = 0; i < kExpert.size; ++i)
      EXPECT_NEAR(added[i], (own[kExpert.offset + i] + kept[i]) / 4, 1e-6);
    EXPECT_TRUE(run.optimizer->step().applied);
  });
}

TEST_P(LowBitExperts, ContinueFromAState) {
  const Case& c = GetParam();
  on_ranks(c, [&](comm::Communicator& all, comm::Communicator& holders) {
    const ZeroOptions options = options_of(c, &holders);
    ZeroRun run(all, with_expert(), Naive::rule(), options);
    const auto window = [&](unsigned t) {
      std::vector<Floats> grads;
      for (unsigned k = 0; k < c.backwards; ++k)
        grads.push_back(gradient(c, t, k, all.rank()));
      return grads;
    };
    for (unsigned t = 0; t < 3; ++t) run.window(window(t));
    const StateDict state = copy_of(run.optimizer->state());
    // A host's ranks keep its residuals once, between them.
    std::vector<std::int64_t> kept = {
        static_cast<std::int64_t>(state.array("worker_error").size())};
    all.all_reduce(kept);
    EXPECT_EQ(kept[0], c.world / c.of_host *
                           static_cast<int>(run.layout.size() - kExpert.size));
    EXPECT_TRUE(state.has_array("experts.1.worker_error"));
    EXPECT_EQ(state.has_array("experts.1.replicas"), c.bits_down > 0);
    ZeroRun other(all, with_expert(), Naive::rule(), options);
    kernels::convert(run.params.view(), other.params.view());
    other.optimizer->load_state_dict(state);
    for (unsigned t = 3; t < 6; ++t) {
      run.window(window(t));
      other.window(window(t));
      EXPECT_EQ(other.values(), run.values()) << t;
    }
    EXPECT_EQ(other.masters(), run.masters());
  });
}

}  // namespace
}  // namespace thinwire::zero::low_bit_experts_test
