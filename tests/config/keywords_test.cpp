// SPDX-License-Identifier: Apache-2.0
// Options by name: the table's fields, their ranges, and names that it lacks.
#include "config/keywords.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "support/errors.h"

namespace thinwire::config::keywords_test {
namespace {

Config with(std::string_view type, std::string_view given) {
  Config config;
  set_optimizer(config, type, read_json(given), {"telemetry"});
  return config;
}

TEST(Keywords, SetTheFieldsThatFilesSet) {
  const Config config = with("OnebitAdam", R"({
    "lr": 0.5, "betas": [0.5, 0.25], "freeze_step": "auto", "warmup_bits": 4,
    "residual_dtype": "bf16", "hierarchy": "flat", "max_grad_norm": 2,
    "skip_nonfinite": false, "outer": {"sync_every": 8, "momentum": 0.5},
    "telemetry": "steps", "total_steps": null})");
  const Config file = Config::from_json(R"({
    "gradient_clipping": 2,
    "optimizer": {"type": "OneBitAdam",
                  "params": {"lr": 0.5, "betas": [0.5, 0.25]}},
    "thinwire": {"auto_freeze": true, "warmup_bits": 4,
                 "residual_dtype": "bf16", "hierarchy": "flat",
                 "check_grad_overflow": false,
                 "outer": {"sync_every": 8, "momentum": 0.5}}})");
  EXPECT_EQ(config.optimizer, file.optimizer);
  EXPECT_EQ(config.to_json(), file.to_json());
}

TEST(Keywords, OfAnotherTypeAreNamedWithTheRange) {
  for (const auto& [given, text] : {
           std::pair(R"({"threads": true})",
                     "an integer in [0, 1024], got true"),
           std::pair(R"({"lr": "1e-3"})", "lr must be a finite number >= 0"),
           std::pair(R"({"freeze_step": 2.5})", "an integer >= 1 or \"auto\""),
           std::pair(R"({"outer": 3})", "outer must be a dict or None, got 3"),
           std::pair(R"({"outer": {"sync": 3}})", "an unexpected key 'sync'"),
       }) {
    Config config;
    try {
      set_optimizer(config, "OnebitAdam", read_json(given));
      ADD_FAILURE() << given;
    } catch (const WrongType& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(config, Config{});
  }
}

TEST(Keywords, OutOfRangeAreNamedWithTheirValue) {
  for (const auto& [given, text] : {
           std::pair(R"({"freeze_step": -1})", "or \"auto\", got -1"),
           std::pair(R"({"betas": [0.9, 1]})", "betas must be an array of two"),
           std::pair(R"({"outer": {"momentum": 0}})", "the key 'sync_every'"),
           std::pair(R"({"outer": {"sync_every": -1}})",
                     "outer['sync_every'] must be an integer >= 0, got -1"),
       })
    test::expect_invalid({text}, [&, given = given] {
      static_cast<void>(with("OnebitAdam", given));
    });
}

TEST(Keywords, ThatAreUnknownAreNamedWithWhatToWrite) {
  for (const auto& [given, text] : {
           std::pair(R"({"max_grad_nrm": 1})", "did you mean 'max_grad_norm'?"),
           std::pair(R"({"telemetri": 1})", "did you mean 'telemetry'?"),
           std::pair(R"({"bits": 4})", "unexpected keyword argument 'bits'"),
           std::pair(R"({"adam_w_mode": false})", "unexpected keyword"),
           std::pair(R"({"scale": null})", "no keyword 'scale' any more"),
           std::pair(R"({"semantics": 1})", "set thinwire.semantics in a"),
       })
    test::expect_invalid({"OnebitAdam()", text}, [&, given = given] {
      static_cast<void>(with("OnebitAdam", given));
    });
}

TEST(Keywords, OfGroupsAreNamedWithTheirNumber) {
  Config config = with("Lamb", "{}");
  const auto set = [&](std::string_view first, std::string_view second,
                       std::vector<float> mask = {}) {
    set_groups(config, {read_json(first), read_json(second)},
               {std::move(mask)});
  };
  set(R"({"lr": 0.5})", R"({"max_coeff": 3})");
  const auto& groups = std::get<optim::LambOptions>(config.optimizer).groups;
  EXPECT_EQ(groups.at(0).learning_rate, 0.5);
  EXPECT_EQ(groups.at(0).max_coeff, std::nullopt);
  EXPECT_EQ(groups.at(1).max_coeff, 3);
  const Config before = config;
  test::expect_invalid({"param_groups[1]['eps'] must be a finite number > 0"},
                       [&] { set("{}", R"({"eps": 0})"); });
  test::expect_invalid(
      {"param_groups[1]['non_freeze']: this optimizer has no such option"},
      [&] { set("{}", R"({"non_freeze": true})"); });
  test::expect_invalid(
      {"param_groups[0]['exp_avg_mask']: this optimizer has no masks"},
      [&] { set("{}", "{}", {1}); });
  EXPECT_EQ(config, before);
}

}  // namespace
}  // namespace thinwire::config::keywords_test
