// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/thinwire/replay/replay.h"
#include "support/errors.h"

namespace thinwire::replay::golden_test {
namespace {

namespace fs = std::filesystem;

// All recordings but the traces of loss scalers, which are thousands.
std::vector<CaseFolder> trajectories() {
  std::vector<CaseFolder> cases = find_cases(THINWIRE_RECORDINGS);
  std::erase_if(cases, [](const CaseFolder& c) { return c.row.has_value(); });
  return cases;
}

class Golden : public ::testing::TestWithParam<CaseFolder> {};

TEST_P(Golden, IsReproducedBitForBit) {
  const Result result = replay_local(GetParam(), config::Semantics::kDeepSpeed);
  EXPECT_EQ(result.outcome, Outcome::kPassed) << result.text;
}

INSTANTIATE_TEST_SUITE_P(All, Golden, ::testing::ValuesIn(trajectories()),
                         [](const auto& tested) {
                           std::string name = tested.param.name;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

// What README.md says is there: none is lost when recordings are packed.
TEST(Recordings, AreAllThere) { EXPECT_EQ(trajectories().size(), 75u); }

TEST(LossScalers, FollowEveryTrace) {
  std::size_t rows = 0;
  for (const CaseFolder& folder : find_cases(THINWIRE_RECORDINGS)) {
    if (!folder.row) continue;
    ++rows;
    const Result result = replay_local(folder, config::Semantics::kDeepSpeed);
    ASSERT_EQ(result.outcome, Outcome::kPassed)
        << folder.name << ' ' << result.text;
  }
  EXPECT_EQ(rows, 2220u);
}

constexpr const char* kSmallExchange = "compressed_allreduce/car_w2_n17";

fs::path recording(const std::string& name) {
  return fs::path(THINWIRE_RECORDINGS) / name;
}

fs::path copy_of(const std::string& name) {
  const fs::path from = recording(name);
  const fs::path to =
      fs::path(::testing::TempDir()) /
      ("thinwire_golden_" + from.filename().string() + "_" +
       ::testing::UnitTest::GetInstance()->current_test_info()->name());
  fs::remove_all(to);
  fs::copy(from, to);
  return to;
}

Result replay_folder(const fs::path& folder) {
  return replay_local(find_cases(folder).at(0), config::Semantics::kDeepSpeed);
}

// Every recorded output is compared: one flipped bit in any of them fails.
TEST(Replay, NoticesOneFlippedBitInAnyArray) {
  for (const char* name :
       {"adam_w2_mask", kSmallExchange, "zero2_w2_fp16_adam"}) {
    const fs::path folder = copy_of(name);
    EXPECT_EQ(replay_folder(folder).outcome, Outcome::kPassed);
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string file = entry.path().filename().string();
      if (!file.ends_with(".bin") || file.starts_with("native.") ||
          file == "init.bin" || file == "grads.bin" || file == "input.bin")
        continue;
      std::fstream stream(entry.path(),
                          std::ios::in | std::ios::out | std::ios::binary);
      const auto flip = [&] {
        stream.seekg(0);
        const int byte = stream.get();
        stream.seekp(0);
        stream.put(static_cast<char>(byte ^ 1));
        stream.flush();
      };
      flip();
      const Result result = replay_folder(folder);
      EXPECT_EQ(result.outcome, Outcome::kFailed) << file;
      EXPECT_NE(result.text.find("got"), std::string::npos) << result.text;
      flip();
    }
    fs::remove_all(folder);
  }
}

TEST(Replay, CorrectedSemanticsIsAnotherTrajectory) {
  for (const char* name : {"adam_w2_mask", "zero2_w2_fp16_adam"}) {
    const Result result = replay_local(find_cases(recording(name)).at(0),
                                       config::Semantics::kCorrected);
    EXPECT_EQ(result.outcome, Outcome::kFailed);
    // A difference in the last bits of masters need not be one of fp16.
    EXPECT_TRUE(result.text.starts_with("step 0, params") ||
                result.text.starts_with("step 0, fp32_partition.g0.bin, "
                                        "element"))
        << result.text;
  }
}

void replace_in_meta(const fs::path& folder, const std::string& from,
                     const std::string& to) {
  std::ifstream in(folder / "meta.json");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  std::ofstream(folder / "meta.json") << text;
}

TEST(Replay, FailsWhatItDoesNotUnderstand) {
  const char* name = "adam_w2_mask";
  const auto failure_after = [&](const std::string& from,
                                 const std::string& to) {
    const fs::path folder = copy_of(name);
    replace_in_meta(folder, from, to);
    const Result result = replay_folder(folder);
    EXPECT_EQ(result.outcome, Outcome::kFailed);
    fs::remove_all(folder);
    return result.text;
  };
  EXPECT_EQ(failure_after("\"wrapper_init\"", "\"foo\""),
            "unsupported: meta.drive \"foo\"");
  EXPECT_EQ(failure_after("\"OnebitAdam\"", "\"Other\""),
            "unsupported: meta.algo \"Other\"");
  EXPECT_EQ(failure_after("\"freeze_step\"", "\"freeze_stop\""),
            "unsupported: meta.opts \"freeze_stop\"");
  name = "zero2_w2_fp16_adam";
  EXPECT_EQ(failure_after("\"Adam\"", "\"Lion\""),
            "unsupported: meta.optimizer \"Lion\"");
  EXPECT_EQ(failure_after("\"stage\": 2", "\"stage\": 3"),
            "unsupported: meta.stage 3");
  EXPECT_EQ(failure_after("\"delayed_shift\"", "\"shift\""),
            "unsupported: meta.fp16 \"shift\"");
}

// The recording's ratios lie between these limits, so it passes where the
// groups' own are in force, and fails where one group has no own ones.
TEST(Replay, LimitsOfTrustRatiosAreTheGroups) {
  const auto outcome = [](const char* limits_of_the_last) {
    const fs::path folder = copy_of("lamb_w2_zero_init");
    nlohmann::json meta;
    std::ifstream(folder / "meta.json") >> meta;
    meta["opts"]["max_coeff"] = 0.02;
    meta["opts"]["min_coeff"] = 0.015;
    for (nlohmann::json& group : meta["groups"])
      group.update({{"max_coeff", 10}, {"min_coeff", 0.01}});
    meta["groups"].back().erase("max_coeff");
    meta["groups"].back().erase("min_coeff");
    meta["groups"].back().update(nlohmann::json::parse(limits_of_the_last));
    std::ofstream(folder / "meta.json") << meta;
    const Result result = replay_folder(folder);
    fs::remove_all(folder);
    return result;
  };
  const Result own = outcome(R"({"max_coeff": 10, "min_coeff": 0.01})");
  EXPECT_EQ(own.outcome, Outcome::kPassed) << own.text;
  const Result everybodys = outcome("{}");
  EXPECT_EQ(everybodys.outcome, Outcome::kFailed);
  EXPECT_TRUE(everybodys.text.starts_with("step ")) << everybodys.text;
  const Result unknown = outcome(R"({"most_coeff": 10})");
  EXPECT_EQ(unknown.text, "unsupported: meta.groups key \"most_coeff\"");
}

TEST(Replay, FailsATornFileByName) {
  const fs::path folder = copy_of("adam_w2_mask");
  fs::resize_file(folder / "params.bin", 12);
  const Result result = replay_folder(folder);
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_NE(result.text.find("params.bin"), std::string::npos) << result.text;
  fs::remove_all(folder);
}

TEST(Replay, SkipsOnlyWhatAnIndexSaysNeedNotPass) {
  const fs::path root = fs::path(::testing::TempDir()) / "thinwire_index";
  fs::remove_all(root);
  fs::create_directories(root);
  fs::rename(copy_of(kSmallExchange), root / "one");
  fs::copy(root / "one", root / "two");
  std::ofstream(root / "index.json") << R"({"one": {"required": false}})";
  const auto cases = find_cases(root);
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(replay_local(cases[0], config::Semantics::kDeepSpeed).outcome,
            Outcome::kSkipped);
  EXPECT_EQ(replay_local(cases[1], config::Semantics::kDeepSpeed).outcome,
            Outcome::kPassed);
  fs::remove_all(root);
}

TEST(Replay, SaysWhenAFolderHoldsNoCase) {
  test::expect_invalid({"DIR", "/nowhere"},
                       [] { (void)find_cases("/nowhere"); });
}

}  // namespace
}  // namespace thinwire::replay::golden_test
