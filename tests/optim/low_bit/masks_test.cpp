// SPDX-License-Identifier: Apache-2.0
// The caller's masks win: at every load, and in every step.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/low_bit/cases.h"
#include "support/errors.h"

namespace thinwire::optim::masks_test {
namespace {

constexpr std::int64_t kFreeze = 3;
constexpr std::size_t kSize = 1500;
constexpr std::size_t kMasked = 40;  // the last ones

using test::step_of;
using Mask = std::vector<float>;

ParameterLayout layout() {
  return ParameterLayout::of({{"a", {kSize}, 0}, {"b", {33}, 1}});
}

Mask mask(bool masked) {
  Mask values(kSize, 1.0f);
  if (masked) std::fill(values.end() - kMasked, values.end(), 0.0f);
  return values;
}

using Kind = test::OpenCase<Mask>;

std::vector<Kind> kinds() {
  const auto set = [](auto& options, const Mask& values) {
    options.learning_rate = 0.02;
    options.groups.resize(2);
    options.groups[0].exp_avg_mask = values;
  };
  return {test::open_case<Mask>("onebit_adam", test::onebit_adam,
                                OnebitAdamOptions{.freeze = {.step = kFreeze}},
                                set),
          test::open_case<Mask>("onebit_lamb", test::onebit_lamb,
                                OnebitLambOptions{.freeze = {.step = kFreeze}},
                                set),
          test::open_case<Mask>("zero_one_adam_momentum", test::zero_one_adam,
                                ZeroOneAdamOptions{.var_freeze_step = 100,
                                                   .var_update_scaler = 1},
                                set),
          test::open_case<Mask>("zero_one_adam_local", test::zero_one_adam,
                                ZeroOneAdamOptions{.var_freeze_step = kFreeze,
                                                   .local_step_scaler = 3,
                                                   .local_step_clipper = 3},
                                set)};
}

class ScriptMasks : public ::testing::TestWithParam<std::tuple<int, Kind>> {
 protected:
  void on_ranks(const std::function<void(comm::Communicator&,
                                         std::vector<float>&)>& body) {
    comm::run_local_ranks(std::get<0>(GetParam()), [&](auto& comm) {
      auto params = test::normal(layout().size(), 3);
      body(comm, params);
    });
  }
  [[nodiscard]] std::unique_ptr<Optimizer> make(comm::Communicator& comm,
                                                bool masked) const {
    return std::get<1>(GetParam()).make(mask(masked))(comm, layout());
  }
  // Parameters of the masked elements.
  static std::vector<float> masked_of(const std::vector<float>& params) {
    return {params.begin() + (kSize - kMasked), params.begin() + kSize};
  }
  // Loads like a checkpoint does: parameters are those of the last exchange.
  static Notes load(Optimizer& to, const Optimizer& from,
                    std::vector<float>& params) {
    const ConstView exchanged =
        optim::exchanged_params(from, View(std::span(params)));
    const auto values = exchanged.as<float>();
    params = {values.begin(), values.end()};
    Notes notes = to.load_state_dict(copy_of(from.state()));
    if (LocalSteps* const local = to.local_steps())
      local->repeat(View(std::span(params)));
    return notes;
  }
};

INSTANTIATE_TEST_SUITE_P(All, ScriptMasks,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 8),
                                            ::testing::ValuesIn(kinds())),
                         test::kNameAndWorld);

// After a load, or from one step to the next.
TEST_P(ScriptMasks, AnElementThatIsNoLongerMaskedTakesPart) {
  on_ranks([&](comm::Communicator& comm, std::vector<float>& params) {
    const auto first = make(comm, true);
    for (std::int64_t t = 1; t <= 8; ++t)
      step_of(*first, params, t, comm.rank());
    const auto second = make(comm, false);
    auto loaded = params;
    const auto notes = load(*second, *first, loaded);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_NE(notes[0].find("1 for 40 elements"), std::string::npos);
    first->groups().set_exp_avg_mask(0, {});
    for (auto [optimizer, values] :
         {std::pair(first.get(), &params), std::pair(second.get(), &loaded)}) {
      const auto before = masked_of(*values);
      StepReport last;
      for (std::int64_t t = 9; t <= 17; ++t) {
        last = step_of(*optimizer, *values, t, comm.rank());
        for (const float p : *values) ASSERT_TRUE(std::isfinite(p)) << t;
      }
      EXPECT_EQ(last.masked, 0u);
      const auto now = masked_of(*values);
      for (std::size_t i = 0; i < kMasked; ++i)
        EXPECT_NE(now[i], before[i]) << i;
    }
  });
}

// Whether it is set between two steps or a load brings it.
TEST_P(ScriptMasks, SettingAMaskEqualsConstructingWithIt) {
  on_ranks([&](comm::Communicator& comm, std::vector<float>& params) {
    const auto first = make(comm, false);
    for (std::int64_t t = 1; t <= 9; ++t)
      step_of(*first, params, t, comm.rank());
    optim::synchronize(*first, View(std::span(params)));
    auto same = params;
    const auto second = make(comm, true);
    const auto notes = load(*second, *first, same);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_NE(notes[0].find("leaves out 40 elements"), std::string::npos);
    first->groups().set_exp_avg_mask(0, mask(true));
    const auto before = masked_of(params);
    for (std::int64_t t = 10; t <= 18; ++t) {
      step_of(*first, params, t, comm.rank());
      const StepReport report = step_of(*second, same, t, comm.rank());
      if (report.phase != Phase::kExact) {
        EXPECT_EQ(report.masked, kMasked) << t;
      }
    }
    optim::synchronize(*first, View(std::span(params)));
    const std::string& name = std::get<1>(GetParam()).name;
    if (name != "zero_one_adam_momentum") {  // whose variance steps are exact
      EXPECT_EQ(masked_of(params), before);
      EXPECT_EQ(masked_of(same), before);
    }
    // Local steps know nothing of the mask until ranks exchange something.
    if (name != "zero_one_adam_local") {
      EXPECT_EQ(params, same);
    }
  });
}

TEST_P(ScriptMasks, DifferentMasksAreRefusedBeforeAnythingChanges) {
  const auto& [world, kind] = GetParam();
  if (world == 1) return;  // nobody to disagree with
  on_ranks([&](comm::Communicator& comm, std::vector<float>& params) {
    const auto optimizer = make(comm, false);
    std::int64_t t = 1;
    // In local steps ranks exchange nothing.
    for (; t <= 8 || optimizer->progress().phase == Phase::kLocal; ++t)
      step_of(*optimizer, params, t, comm.rank());
    if (comm.rank() == 1) optimizer->groups().set_exp_avg_mask(0, mask(true));
    const auto before = params;
    test::expect_invalid({"exp_avg_mask", "rank 1"},
                         [&] { step_of(*optimizer, params, t, comm.rank()); });
    EXPECT_EQ(params, before);
    EXPECT_EQ(optimizer->progress().steps, t - 1);
    if (comm.rank() != 1) optimizer->groups().set_exp_avg_mask(0, mask(true));
    for (const std::int64_t end = t + 4; t < end; ++t)
      EXPECT_TRUE(step_of(*optimizer, params, t, comm.rank()).applied);
  });
}

TEST(MaskArguments, AreChecked) {
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout(), {});
    test::expect_invalid({"group", "[0, 2)", "2"},
                         [&] { optimizer.groups().set_exp_avg_mask(2, {}); });
    test::expect_invalid({"exp_avg_mask", "1500", "3 values"}, [&] {
      optimizer.groups().set_exp_avg_mask(0, Mask(3, 1.0f));
    });
    DataParallel exact(comm, std::make_unique<Adam>(layout(), AdamOptions{}));
    test::expect_invalid({"exp_avg_mask"}, [&] {
      exact.groups().set_exp_avg_mask(0, mask(true));
    });
  });
}

}  // namespace
}  // namespace thinwire::optim::masks_test
