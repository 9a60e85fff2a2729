// SPDX-License-Identifier: Apache-2.0
// Options of all optimizers out of their range.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/support.h"
#include "support/errors.h"

namespace thinwire::optim::options_test {
namespace {

const ParameterLayout& layout() {
  static const ParameterLayout two_groups =
      ParameterLayout::of({{"a", {4}, 0}, {"b", {3}, 1}});
  return two_groups;
}

template <class Options>
void refused(const Options& options, const char* name, const char* value) {
  test::expect_invalid({name, value}, [&] {
    if constexpr (requires { options.validate(layout()); })
      options.validate(layout());
    else
      options.validate(2);
  });
}

template <class Options>
class SharedOptions : public ::testing::Test {};
using AllOptions = ::testing::Types<AdamOptions, LambOptions, OnebitAdamOptions,
                                    OnebitLambOptions, ZeroOneAdamOptions>;
TYPED_TEST_SUITE(SharedOptions, AllOptions);

TYPED_TEST(SharedOptions, OutOfRangeAreRefusedByName) {
  using Options = TypeParam;
  refused(Options{.learning_rate = -1}, "learning_rate", "-1");
  refused(Options{.learning_rate = INFINITY}, "learning_rate", "inf");
  refused(Options{.beta1 = 1}, "beta1", "got 1");
  refused(Options{.beta1 = NAN}, "beta1", "nan");
  refused(Options{.beta2 = -0.5}, "beta2", "-0.5");
  refused(Options{.epsilon = 0}, "epsilon", "got 0");
  refused(Options{.epsilon = 1e-50}, "epsilon", "at least 1.4e-45");
  refused(Options{.weight_decay = -2}, "weight_decay", "-2");
  refused(Options{.weight_decay = NAN}, "weight_decay", "nan");
  Options options;
  options.groups.resize(1);
  refused(options, "groups", "1 entries");
  options.groups.resize(2);
  options.groups[1].beta2 = 1.5;
  refused(options, "beta2", "1.5");
}

template <class Options>
class LowBitOptions : public ::testing::Test {};
using AllLowBitOptions =
    ::testing::Types<OnebitAdamOptions, OnebitLambOptions, ZeroOneAdamOptions>;
TYPED_TEST_SUITE(LowBitOptions, AllLowBitOptions);

TYPED_TEST(LowBitOptions, OutOfRangeAreRefusedByName) {
  using Options = TypeParam;
  refused(Options{.compression = {.denom_floor = -0.1}}, "denom_floor", "-0.1");
  refused(Options{.compression = {.denom_floor = NAN}}, "denom_floor", "nan");
  refused(Options{.compression = {.residual_dtype = DType::kFloat16}},
          "residual_dtype", "float16");
  refused(Options{.compression = {.exchange = {.max_grad_norm = -1}}},
          "max_grad_norm", "-1");
  refused(Options{.compression = {.exchange = {.max_grad_norm = INFINITY}}},
          "max_grad_norm", "inf");
  refused(Options{.compression = {.exchange = {.verify_every = -1}}},
          "verify_every", "-1");
  refused(Options{.compression = {.exchange = {.num_threads = 1025}}},
          "num_threads", "1025");
  Options options;
  options.groups.resize(2);
  options.groups[0].exp_avg_mask = {1, 0, 1};
  refused(options, "groups[0].exp_avg_mask", "3 values");
  options.groups[0].exp_avg_mask = {1, 0, 1, 1};
  EXPECT_NO_THROW(options.validate(layout()));
  EXPECT_NO_THROW(Options{}.validate(layout()));
}

template <class Options>
class FreezingOptions : public ::testing::Test {};
using AllFreezingOptions =
    ::testing::Types<OnebitAdamOptions, OnebitLambOptions>;
TYPED_TEST_SUITE(FreezingOptions, AllFreezingOptions);

TYPED_TEST(FreezingOptions, OutOfRangeAreRefusedByName) {
  using Options = TypeParam;
  refused(Options{.freeze = {.step = 0}}, "freeze_step", "got 0");
  refused(Options{.freeze = {.step = -2}}, "freeze_step", "-2");
  refused(Options{.freeze = {.lr_warmup_steps = -1}}, "lr_warmup_steps", "-1");
  refused(Options{.freeze = {.total_steps = 0}}, "total_steps", "got 0");
  refused(Options{.freeze = {.min_step = 0}}, "min_freeze_step", "got 0");
  refused(Options{.freeze = {.max_step = 0}}, "max_freeze_step", "got 0");
  refused(Options{.freeze = {.ratio = 0}}, "freeze_ratio", "got 0");
  refused(Options{.freeze = {.ratio = 1.5}}, "freeze_ratio", "1.5");
  for (const int bits : {-1, 1, 2, 16, 32})
    refused(Options{.freeze = {.warmup_bits = bits}},
            "warmup_bits must be 0, 4 or 8", std::to_string(bits).c_str());
  EXPECT_NO_THROW(Options{.freeze = {.step = kAutoFreeze}}.validate(layout()));
}

template <class Options>
void trust_limits_are_refused() {
  refused(Options{.max_coeff = 0.001}, "max_coeff", "0.001");
  refused(Options{.max_coeff = INFINITY}, "max_coeff", "inf");
  refused(Options{.max_coeff = 0, .min_coeff = 0}, "max_coeff", "got 0");
  refused(Options{.min_coeff = -1}, "min_coeff", "-1");
  refused(Options{.min_coeff = NAN}, "min_coeff", "nan");

  Options options;
  options.groups.resize(2);
  const auto group_refused = [&](std::optional<double> min,
                                 std::optional<double> max, const char* name,
                                 const char* value) {
    options.groups[1].min_coeff = min;
    options.groups[1].max_coeff = max;
    refused(options, name, value);
  };
  group_refused(-1, {}, "groups[1].min_coeff", "got -1");
  group_refused(NAN, {}, "groups[1].min_coeff", "nan");
  group_refused({}, INFINITY, "groups[1].max_coeff", "inf");
  group_refused({}, 0, "groups[1].max_coeff", "got 0");
  // One of the group's, and one of all groups', that do not fit together.
  group_refused({}, 0.001, "groups[1].max_coeff", ">= min_coeff = 0.01");
  group_refused(20, {}, "max_coeff", ">= groups[1].min_coeff = 20, got 10");
  options.groups[1].max_coeff = 30;
  if constexpr (std::is_same_v<Options, LambOptions>)
    EXPECT_NO_THROW(options.validate(2));
  else
    EXPECT_NO_THROW(options.validate(layout()));
}

TEST(LambOptions, LimitsOutOfRangeAreRefusedByName) {
  trust_limits_are_refused<LambOptions>();
  test::expect_invalid({"min_coeff", "-1"},
                       [] { Lamb(layout(), {.min_coeff = -1}); });
}

TEST(OnebitLambOptions, OutOfRangeAreRefusedByName) {
  using Options = OnebitLambOptions;
  trust_limits_are_refused<Options>();
  refused(Options{.coeff_beta = 1}, "coeff_beta", "got 1");
  refused(Options{.coeff_beta = -0.1}, "coeff_beta", "-0.1");
  refused(Options{.factor_max = 0.4}, "factor_max", "0.4");
  refused(Options{.factor_max = INFINITY}, "factor_max", "inf");
  refused(Options{.factor_min = 0}, "factor_min", "got 0");
  refused(Options{.factor_min = NAN}, "factor_min", "nan");
  refused(Options{.factor_threshold = -0.1}, "factor_threshold", "-0.1");
  refused(Options{.factor_threshold = 1.1}, "factor_threshold", "1.1");
}

TEST(ZeroOneAdamOptions, OutOfRangeAreRefusedByName) {
  using Options = ZeroOneAdamOptions;
  refused(Options{.var_freeze_step = 0}, "var_freeze_step", "got 0");
  refused(Options{.var_freeze_step = -1}, "var_freeze_step", "-1");
  refused(Options{.var_update_scaler = 0}, "var_update_scaler", "got 0");
  refused(Options{.local_step_scaler = 0}, "local_step_scaler", "got 0");
  refused(Options{.local_step_clipper = 0}, "local_step_clipper", "got 0");
}

TEST(LowBitOptimizers, DifferentOptionsAreNamedOnAllRanks) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const bool first = comm.rank() == 0;
    test::expect_invalid({"factor_max=4 ", "factor_max=3 "}, [&] {
      OnebitLamb(comm, layout(), {.factor_max = first ? 4.0 : 3.0});
    });
    test::expect_invalid(
        {"local_step_clipper=16 ", "local_step_clipper=8 "}, [&] {
          ZeroOneAdam(comm, layout(), {.local_step_clipper = first ? 16 : 8});
        });
    test::expect_invalid({"max_coeff=10", "max_coeff=9"}, [&] {
      test::exact_lamb({.max_coeff = first ? 10.0 : 9.0})(comm, layout());
    });
    OnebitLambOptions groups;
    groups.groups.resize(2);
    groups.groups[1].min_coeff = first ? 0.5 : 0.25;
    test::expect_invalid({"min_coeff=0.5 ", "min_coeff=0.25 "},
                         [&] { OnebitLamb(comm, layout(), groups); });
  });
}

}  // namespace
}  // namespace thinwire::optim::options_test
