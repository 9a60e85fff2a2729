// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's keys whose meaning here depends on other keys.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/text.h"
#include "thinwire/config/config.h"

namespace thinwire::config::deepspeed_keys_test {
namespace {

using test::expect_rejected;
using test::read;

TEST(ConfigFile, Item9OverlapCommSetsTheOverlapOfZero) {
  const auto overlap = [](const std::string& zero, const std::string& own) {
    return read(R"({"zero_optimization": {)" + zero + R"(}, "thinwire": {)" +
                own + "}}")
        .comm.overlap;
  };
  EXPECT_FALSE(overlap(R"("stage": 2, "overlap_comm": false)", ""));
  EXPECT_TRUE(overlap(R"("stage": 1, "overlap_comm": true)", ""));
  EXPECT_TRUE(overlap(R"("stage": 1)", ""));
  EXPECT_TRUE(overlap(R"("overlap_comm": false)", ""));
  EXPECT_FALSE(overlap(R"("stage": 1)", R"("overlap": false)"));
  expect_rejected(R"({"zero_optimization": {"stage": 1, "overlap_comm": true},
                      "thinwire": {"overlap": false}})",
                  {"zero_optimization.overlap_comm", "thinwire.overlap"});
  expect_rejected(R"({"zero_optimization": {"overlap_comm": 1}})",
                  {"zero_optimization.overlap_comm", "true or false", "got 1"});
}

TEST(ConfigFile, Item9DivisionsBeforeTheSumAreDeepSpeeds) {
  const auto why = [](const std::string& rest) {
    std::vector<KeyNote> notes;
    const Config config = Config::from_json(
        R"({"prescale_gradients": false, "gradient_predivide_factor": 4, )" +
            rest + "}",
        &notes);
    EXPECT_EQ(config.gradient_predivide_factor, 4);
    EXPECT_EQ(notes[0].note, notes[1].note);
    return notes[1].note;
  };
  const std::string reference = R"("thinwire": {"semantics": "deepspeed"})";
  EXPECT_NE(why(R"("fp16": {"enabled": true})").find("fp32"),
            std::string::npos);
  EXPECT_NE(why(reference).find("fp32"), std::string::npos);
  EXPECT_EQ(why(reference + R"(, "fp16": {"enabled": true})"), "");
  EXPECT_NE(why(reference + R"(, "zero_optimization": {"stage": 1})")
                .find("reduce_scatter"),
            std::string::npos);
  EXPECT_EQ(why(reference + R"(, "zero_optimization": {"stage": 1,
                                 "reduce_scatter": false})"),
            "");
  for (const char* value : {"0", "-1", "true"})
    expect_rejected(
        R"({"gradient_predivide_factor": )" + std::string(value) + "}",
        {"gradient_predivide_factor", "> 0", value});
}

TEST(ConfigFile, Item8TheBackendIsOneOfFour) {
  const auto with = [](const std::string& backend) {
    return R"({"optimizer": {"type": "OneBitAdam", "params": {)" + backend +
           "}}}";
  };
  EXPECT_EQ(read(with("")).comm.backend, CommBackend::kUnset);
  EXPECT_EQ(read(with(R"("comm_backend_name": "nccl")")).comm.backend,
            CommBackend::kNccl);
  EXPECT_EQ(read(with(R"("comm_backend_name": "mpi")")).comm.backend,
            CommBackend::kMpi);
  expect_rejected(
      with(R"("comm_backend_name": "foo")"),
      {"optimizer.params.comm_backend_name", "nccl, hccl, mpi, gloo", "foo"});
}

TEST(ConfigFile, Item15AMaximumNormOfZeroIsWhatHoldsAnyway) {
  read(R"({"optimizer": {"type": "OneBitLamb", "params":
           {"max_grad_norm": 0.0}}})")
      .validate(2);
}

}  // namespace
}  // namespace thinwire::config::deepspeed_keys_test
