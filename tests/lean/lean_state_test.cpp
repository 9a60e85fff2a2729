// SPDX-License-Identifier: Apache-2.0
// Lean 1-bit Adam, saved and loaded at every stage. Before its freeze it is
// compared with ZeRO-1, after it with plain loops, bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "lean/lean_plain.h"
#include "lean/lean_support.h"
#include "optim/low_bit/late_cases.h"
#include "optim/other_ranks.h"
#include "support/errors.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::lean::lean_state_test {
namespace {

using test::LeanRanks;
using test::LeanRun;
using test::LeanVariant;
using test::named_gradients;
using test::NamedGradients;
using test::Saved;
using Options = LeanOnebitAdamOptions;

constexpr std::int64_t kFreeze = test::kLateFreeze;
const std::vector<DType> kDtypes = {DType::kFloat32, DType::kBFloat16};

Options options(int bits = 8) {
  Options o{.learning_rate = 0.02,
            .weight_decay = 0.1,
            .freeze = {.step = kFreeze},
            .denominator_bits = bits};
  o.compression.exchange.max_grad_norm = 1;
  return o;
}

std::vector<float> grads(const LeanRun& run, std::int64_t t, int rank) {
  return test::late_gradient(run.layout, t, rank);
}

void copy(const Buffer& from, Buffer& to) {
  std::memcpy(to.data(), from.data(), from.bytes());
}

// Warm-ups are exact or, flat, over few bits; states are those of memory, or
// those that all ranks saved.
TEST(LeanState, ARunContinuesWithTheSameBitsFromEveryStep) {
  const auto expect_same = [](const LeanRun& got, const LeanRun& want) {
    EXPECT_EQ(got.optimizer->freeze()->frozen_at(),
              want.optimizer->freeze()->frozen_at());
    EXPECT_TRUE(test::same_bits<float>(got.full(), want.full()));
    EXPECT_TRUE(test::same_bytes(got.params.view(), want.params.view()));
  };
  const auto body = [&](comm::Communicator& comm, DType dtype, int bits,
                        std::vector<Saved>& saved) {
    Options o = options();
    o.freeze.warmup_bits = bits;
    o.compression.exchange.bucket_elements = 2048;
    LeanRun run(comm, test::late_layout(), dtype, o);
    LeanRun loaded(comm, test::late_layout(), dtype, o);
    LeanRun adopted(comm, test::late_layout(), dtype, o);
    for (std::int64_t t = 1; t <= 7; ++t) {
      SCOPED_TRACE(t);
      run.step(grads(run, t, comm.rank()));
      comm.barrier();  // nobody reads the last ones any more
      saved[static_cast<std::size_t>(comm.rank())] = test::save(*run.optimizer);
      comm.barrier();
      copy(run.params, loaded.params);
      copy(run.params, adopted.params);
      loaded.optimizer->load_state_dict(copy_of(run.optimizer->state()));
      test::adopt(comm, *adopted.optimizer, saved);
      expect_same(loaded, run);
      expect_same(adopted, run);
      run.step(grads(run, ++t, comm.rank()));
      loaded.step(grads(run, t, comm.rank()));
      adopted.step(grads(run, t, comm.rank()));
      expect_same(loaded, run);
      expect_same(adopted, run);
    }
  };
  for (const LeanRanks& ranks : {LeanRanks{1}, LeanRanks{3}, LeanRanks{4, 2},
                                 LeanRanks{6, 2, test::Placing::kRoundRobin}})
    for (const DType dtype : kDtypes)
      for (const int bits : {0, 4, 8}) {
        if (bits != 0 && (ranks.world == 1 || ranks.per_host > 1)) continue;
        SCOPED_TRACE(ranks.name() + ' ' + std::string(to_string(dtype)));
        std::vector<Saved> saved(static_cast<std::size_t>(ranks.world));
        test::run_lean_ranks(ranks, [&](comm::Communicator& comm) {
          body(comm, dtype, bits, saved);
        });
      }
}

TEST(LeanState, AFrozenOptimizerReturnsToItsExactStage) {
  for (const DType dtype : kDtypes)
    test::run_ranks("local", 2, [&](comm::Communicator& comm) {
      LeanRun run(comm, test::late_layout(), dtype, options());
      run.step(grads(run, 1, comm.rank()));
      const StateDict state = copy_of(run.optimizer->state());
      Buffer params(run.params.size(), dtype);
      copy(run.params, params);
      std::vector<std::vector<float>> seen;
      for (std::int64_t t = 2; t <= 6; ++t) {
        run.step(grads(run, t, comm.rank()));
        seen.push_back(run.full());
      }
      copy(params, run.params);
      run.optimizer->load_state_dict(state);
      EXPECT_EQ(run.optimizer->freeze()->frozen_at(), 0);
      EXPECT_EQ(run.optimizer->progress().steps, 1);
      for (std::int64_t t = 2; t <= 6; ++t) {
        run.step(grads(run, t, comm.rank()));
        EXPECT_TRUE(test::same_bits<float>(
            run.full(), seen[static_cast<std::size_t>(t - 2)]))
            << t;
      }
    });
}

struct Checkpoint {
  std::vector<Saved> states;
  std::vector<float> full;
  Buffer params;
};

Checkpoint saved_by(int world, DType dtype, std::int64_t steps,
                    const Options& o) {
  Checkpoint saved{std::vector<Saved>(static_cast<std::size_t>(world)), {}, {}};
  test::run_ranks("local", world, [&](comm::Communicator& comm) {
    LeanRun run(comm, test::late_layout(), dtype, o);
    for (std::int64_t t = 1; t <= steps; ++t)
      run.step(grads(run, t, comm.rank()));
    saved.states[static_cast<std::size_t>(comm.rank())] =
        test::save(*run.optimizer);
    const auto full = run.full();
    if (comm.rank() != 0) return;
    saved.full = full;
    saved.params = Buffer(run.params.size(), dtype);
    copy(run.params, saved.params);
  });
  return saved;
}

TEST(LeanState, OtherRanksRestoreAllExceptResidualsUnchanged) {
  for (const DType dtype : kDtypes)
    for (const std::int64_t steps : {2, 3, 5}) {
      const Checkpoint from = saved_by(3, dtype, steps, options(4));
      for (const int world : {1, 2, 3, 4})
        test::run_ranks("local", world, [&](comm::Communicator& comm) {
          Options o = options(4);
          o.compression.exchange.bucket_elements = 2048;
          o.compression.exchange.verify_every = 1;
          LeanRun run(comm, test::late_layout(), dtype, o);
          copy(from.params, run.params);
          test::adopt(comm, *run.optimizer, from.states);
          EXPECT_EQ(run.optimizer->progress().steps, steps);
          EXPECT_EQ(run.optimizer->freeze()->frozen_at(),
                    steps < kFreeze ? 0 : kFreeze);
          EXPECT_TRUE(test::same_bits<float>(run.full(), from.full))
              << steps << " steps, " << world << " ranks";
          for (std::int64_t t = steps + 1; t <= 8; ++t) {
            EXPECT_TRUE(run.step(grads(run, t, comm.rank())).applied);
            EXPECT_TRUE(test::are_same_on_all_ranks(comm, run.params.view()));
          }
        });
    }
}

// A single rank adds the residuals of several to its first update, exact or, if
// its options end the exact steps, compressed.
TEST(LeanState, OfALowBitWarmUpGivesItsResidualsToASingleRank) {
  Options o = options();
  o.beta1 = 0;
  o.compression.exchange.max_grad_norm = 0;
  o.freeze.warmup_bits = 4;
  for (const DType residuals : {DType::kFloat32, DType::kBFloat16}) {
    o.compression.residual_dtype = residuals;
    const Checkpoint from = saved_by(3, DType::kBFloat16, 2, o);
    for (const std::int64_t freeze_step : {10, 2})
      test::run_ranks("local", 1, [&](comm::Communicator& comm) {
        SCOPED_TRACE(freeze_step);
        Options own = o;
        own.freeze.step = freeze_step;
        LeanRun run(comm, test::late_layout(), DType::kBFloat16, own);
        copy(from.params, run.params);
        test::adopt(comm, *run.optimizer, from.states);
        const StateDict loaded = copy_of(run.optimizer->state());
        const auto e = test::floats_of(loaded.array(optim::kWorkerError));
        const auto v = test::floats_of(loaded.array("exp_avg_sq"));
        const std::vector<float> g = grads(run, 3, 0);
        EXPECT_EQ(run.step(g).bits, 0);
        const StateDict state = copy_of(run.optimizer->state());
        EXPECT_FALSE(state.has_array(optim::kWorkerError));
        EXPECT_EQ(state.integer("warmup_bits"), 4);
        const bool is_exact = freeze_step == 10;
        const auto m =
            test::floats_of(state.array(is_exact ? "exp_avg" : "momentum"));
        std::size_t with_residual = 0;
        for (std::size_t i = 0; i < g.size(); ++i) {
          if (!is_exact && v[i] == 0) continue;  // inactive at the freeze
          ASSERT_NEAR(m[i], g[i] + e[i], is_exact ? 0 : 0.01f) << i;
          with_residual += e[i] != 0 ? 1 : 0;
        }
        EXPECT_GT(with_residual, g.size() / 2);
        run.step(grads(run, 4, 0));
      });
  }
}

// Before a freeze: what Adam was, sharded or not, and 1-bit Adam.
TEST(LeanState, BeginsWithAStateOfAdam) {
  const ParameterLayout layout = test::late_layout();
  const Options o = options();
  const auto gradient = [&](std::int64_t t) {
    return test::late_gradient(layout, t, 0);
  };
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    auto zero = test::exact_twin(comm, layout, DType::kFloat32, o);
    LeanRun own(comm, layout, DType::kFloat32, o);
    for (std::int64_t t = 1; t <= 2; ++t) {
      auto copy_of_it = gradient(t);
      (void)zero.optimizer->step(zero.params.view(), copy_of_it);
      own.step(gradient(t));
    }
    const Saved saved = test::save(*zero.optimizer);
    LeanRun from_zero(comm, layout, DType::kFloat32, o);
    from_zero.optimizer->adopt(saved.values.part(""))();
    copy(zero.params, from_zero.params);

    optim::OnebitAdam onebit(
        comm, layout,
        {.learning_rate = o.learning_rate,
         .weight_decay = o.weight_decay,
         .freeze = {.step = 100},
         .compression = {.exchange = o.compression.exchange}});
    std::vector<float> params = own.start;
    for (std::int64_t t = 1; t <= 2; ++t) {
      auto copy_of_it = gradient(t);
      (void)onebit.step(params, copy_of_it);
    }
    std::vector<Saved> whole;
    for (int r = 0; r < 2; ++r) whole.push_back(test::save(onebit));
    LeanRun from_onebit(comm, layout, DType::kFloat32, o);
    test::adopt(comm, *from_onebit.optimizer, whole);
    copy(zero.params, from_onebit.params);
    for (LeanRun* run : {&from_zero, &from_onebit}) {
      EXPECT_EQ(run->optimizer->progress().steps, 2);
      run->step(gradient(3));
    }
    own.step(gradient(3));
    EXPECT_EQ(from_zero.optimizer->freeze()->frozen_at(), 3);
    EXPECT_TRUE(test::same_bits<float>(from_zero.full(), own.full()));
    EXPECT_TRUE(test::same_bits<float>(from_onebit.full(), own.full()));
  });
}

void expect_refused(comm::Communicator& comm, const Checkpoint& from,
                    DType dtype, const Options& o, std::string_view text) {
  LeanRun run(comm, test::late_layout(), dtype, o);
  test::expect_error(ErrorCode::kCorruptCheckpoint, {text},
                     [&] { test::adopt(comm, *run.optimizer, from.states); });
  EXPECT_EQ(run.optimizer->progress().steps, 0);
}

TEST(LeanState, NamesThePartThatDoesNotFit) {
  const Checkpoint from = saved_by(2, DType::kBFloat16, 4, options());
  const Checkpoint single = saved_by(2, DType::kFloat32, 4, options());
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    expect_refused(comm, single, DType::kBFloat16, options(),
                   "of float32 parameters");
    expect_refused(comm, from, DType::kBFloat16, options(4),
                   "denominator_bits is 8, this optimizer's 4");
    expect_refused(comm, from, DType::kFloat32, options(),
                   "of bfloat16 parameters");
    LeanRun run(comm, test::late_layout(), DType::kBFloat16, options());
    const auto altered = [&](auto change) {
      StateDict state =
          from.states[static_cast<std::size_t>(comm.rank())].values.part("");
      change(state);
      return state;
    };
    const auto refused = [&](std::string_view text, auto change) {
      test::expect_error(ErrorCode::kCorruptCheckpoint, {text},
                         [&] { (void)run.optimizer->adopt(altered(change)); });
    };
    refused("denominator_codes", [](StateDict& s) {
      s.put("denominator_codes", std::vector<std::uint8_t>(3));
    });
    refused("low_bits_upper", [](StateDict& s) { s.erase("low_bits_upper"); });
    refused("denominator_lows", [](StateDict& s) {
      s.put("denominator_lows",
            std::vector<float>(s.array("denominator_lows").size(),
                               std::numeric_limits<float>::infinity()));
    });
    refused("optimizer is onebit_lamb",
            [](StateDict& s) { s.put_text("optimizer", "onebit_lamb"); });
    refused("the variance was given up",
            [](StateDict& s) { s.put_text("optimizer", "onebit_adam"); });
    refused("parameters that are new", [](StateDict& s) {
      s.put(optim::ranges_key(optim::kNewParameters),
            std::vector<std::int64_t>{0, 1});
    });
  });
}

// ---- steps against plain loops

class LeanPlainLoops : public ::testing::TestWithParam<
                           std::tuple<int, NamedGradients, LeanVariant>> {};
std::string name_of(
    const ::testing::TestParamInfo<LeanPlainLoops::ParamType>& tested) {
  const auto& [world, gradients, variant] = tested.param;
  return fmt::format("{}_{}_w{}", variant.name, gradients.name, world);
}
INSTANTIATE_TEST_SUITE_P(
    All, LeanPlainLoops,
    ::testing::Combine(::testing::Values(1, 3),
                       ::testing::ValuesIn(named_gradients()),
                       ::testing::ValuesIn(test::lean_variants())),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    More, LeanPlainLoops,
    ::testing::Combine(
        ::testing::Values(2, 8),
        ::testing::Values(named_gradients()[1], named_gradients()[3]),
        ::testing::Values(test::lean_variants()[0], test::lean_variants()[1],
                          test::lean_variants()[3])),
    name_of);

TEST_P(LeanPlainLoops, AreEqual) {
  const auto& [world, gradients, variant] = GetParam();
  test::expect_plain_loops({.world = world}, gradients, variant);
}

}  // namespace
}  // namespace thinwire::lean::lean_state_test
