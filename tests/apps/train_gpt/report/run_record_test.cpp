// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/report/run_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "apps/train_gpt/report/run_folder.h"

namespace thinwire::train_gpt::run_record_test {
namespace {

TEST_F(RunFolder, KeepsSettingsThatAreLists) {
  const std::string list = R"(["hierarchy=flat","zero_bits_up=4"])";
  RunWriter writer(folder, {{"set", list}}, {"a.txt"});
  writer.begin();
  Summary summary = kSummary;
  summary.zero_bits = "4/0";
  (void)writer.finish(summary);
  const RunRecord run = read_run(folder);
  EXPECT_EQ(run.settings, (Settings{{"set", list}}));
  EXPECT_EQ(run.summary.zero_bits, "4/0");
}

TEST_F(RunFolder, KeepsWhatAConfigurationFileSays) {
  RunWriter(folder, {{"steps", "2"}}, {"a.txt"},
            R"({"fp16": {"enabled": true}})")
      .begin();
  const std::string config = text("config.json");
  EXPECT_NE(config.find("\"fp16\""), std::string::npos) << config;
  EXPECT_NE(config.find("\"train_gpt\""), std::string::npos) << config;
}

TEST_F(RunFolder, CountsNoRoundWhereOnlyAFlagTravelled) {
  RunWriter writer(folder, {}, {});
  writer.begin();
  writer.add(StepRow{1, 5, 0.001, "compressed", 1024, 64, 900, 0.1});
  writer.add(StepRow{2, 5, 0.001, "local", 1024, 64, 3, 0.1});
  EXPECT_EQ(writer.finish(kSummary).rounds_per_step(), 0.5);
}

TEST_F(RunFolder, IsReadBackAsItWasWritten) {
  write_run();
  const RunRecord run = read_run(folder);
  EXPECT_EQ(run.summary.optimizer, "onebit_adam");
  EXPECT_EQ(run.summary.params_checksum, "00ff00ff00ff00ff");
  EXPECT_EQ(run.summary.bytes_sent_per_rank, 1100u);
  EXPECT_EQ(run.summary.final_val_loss, 1.625);
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_EQ(run.steps[0].loss, 5.5);
  EXPECT_EQ(run.steps[0].phase, "exact");
  EXPECT_EQ(run.steps[0].loss_scale, 65536);
  EXPECT_TRUE(std::isnan(run.steps[1].loss));
  EXPECT_EQ(run.steps[1].bytes_sent, 100u);
  EXPECT_EQ(run.steps[1].memory_bytes, 17'000u);
  EXPECT_EQ(run.summary.zero, 1);
  EXPECT_TRUE(run.summary.offload);
  EXPECT_EQ(run.summary.memory.states, 8000u);
  ASSERT_EQ(run.validations.size(), 1u);
  EXPECT_EQ(run.validations[0].val_loss, 1.625);
  EXPECT_EQ(run.settings,
            (Settings{{"optimizer", "onebit_adam"}, {"steps", "2"}}));
  EXPECT_EQ(run.bytes_per_step("exact"), 1000);
  EXPECT_EQ(run.bytes_per_step("compressed"), 100);
  EXPECT_EQ(run.bytes_per_step("local"), std::nullopt);
  EXPECT_EQ(run.rounds_per_step(), 1);
}

TEST(RunRecord, LocalStepsSendNothingAndAreNoRounds) {
  RunRecord run;
  EXPECT_EQ(run.rounds_per_step(), 0);
  for (std::int64_t step = 1; step <= 8; ++step) {
    const bool syncs = step % 4 == 0;
    run.steps.push_back({.step = step,
                         .phase = syncs ? "compressed" : "local",
                         .bytes_sent = syncs ? 100u : 0u});
  }
  EXPECT_EQ(run.bytes_per_step("local"), 0);
  EXPECT_EQ(run.bytes_per_step("compressed"), 100);
  EXPECT_EQ(run.rounds_per_step(), 0.25);
}

TEST_F(RunFolder, HasTheFieldsThatOthersRelyOn) {
  write_run();
  EXPECT_EQ(text("metrics.jsonl"),
            "{\"step\":1,\"loss\":5.5,\"lr\":0.001,\"phase\":\"exact\","
            "\"tokens\":2048,\"bytes_sent\":1000,\"seconds\":0.25,"
            "\"loss_scale\":65536.0,\"memory_bytes\":17000,"
            "\"masked\":0,\"heavy\":0,\"revived\":0,\"time\":0.0,"
            "\"grad_norm\":0.0,\"applied\":true,\"wait_seconds\":0.0,"
            "\"update_seconds\":0.0,\"exchange_seconds\":0.0,"
            "\"bytes_between_hosts\":0}\n"
            "{\"step\":2,\"loss\":null,\"lr\":0.002,\"phase\":\"compressed\","
            "\"tokens\":2048,\"bytes_sent\":100,\"seconds\":0.25,"
            "\"loss_scale\":32768.0,\"memory_bytes\":17000,"
            "\"masked\":0,\"heavy\":0,\"revived\":0,\"time\":0.0,"
            "\"grad_norm\":0.0,\"applied\":true,\"wait_seconds\":0.0,"
            "\"update_seconds\":0.0,\"exchange_seconds\":0.0,"
            "\"bytes_between_hosts\":0}\n"
            "{\"step\":2,\"val_loss\":1.625}\n");
  EXPECT_EQ(text("summary.json"),
            "{\n"
            "  \"optimizer\": \"onebit_adam\",\n"
            "  \"semantics\": \"corrected\",\n"
            "  \"ranks\": 4,\n"
            "  \"steps\": 2,\n"
            "  \"params\": 932608,\n"
            "  \"final_val_loss\": 1.625,\n"
            "  \"final_val_bits_per_byte\": 2.25,\n"
            "  \"bytes_sent_per_rank\": 1100,\n"
            "  \"seconds\": 0.5,\n"
            "  \"tokens_per_second\": 4096.0,\n"
            "  \"params_checksum\": \"00ff00ff00ff00ff\",\n"
            "  \"precision\": \"fp32\",\n"
            "  \"skipped_steps\": 0,\n"
            "  \"zero\": 1,\n"
            "  \"offload\": true,\n"
            "  \"memory\": {\n"
            "    \"parameters\": 4000,\n"
            "    \"gradients\": 4000,\n"
            "    \"states\": 8000,\n"
            "    \"buckets\": 1000,\n"
            "    \"other\": 0,\n"
            "    \"peak\": 17000\n"
            "  },\n"
            "  \"saves\": 0,\n"
            "  \"save_seconds\": 0.0\n"
            "}\n");
  EXPECT_EQ(text("config.json"),
            "{\n"
            "  \"train_gpt\": {\n"
            "    \"data\": [\n"
            "      \"a.txt\"\n"
            "    ],\n"
            "    \"optimizer\": \"onebit_adam\",\n"
            "    \"steps\": 2\n"
            "  }\n"
            "}\n");
}

TEST_F(RunFolder, ForgetsTheResultsOfAnEarlierRun) {
  write_run();
  RunWriter(folder, {}, {"a.txt"}).begin();
  EXPECT_FALSE(fs::exists(folder / "summary.json"));
  EXPECT_EQ(text("metrics.jsonl"), "");
}

}  // namespace
}  // namespace thinwire::train_gpt::run_record_test
