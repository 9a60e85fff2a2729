// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/report/run_record.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "support/errors.h"

namespace thinwire::train_gpt {
namespace {

namespace fs = std::filesystem;
using test::expect_error;

const Summary kSummary = {.optimizer = "onebit_adam",
                          .semantics = "corrected",
                          .ranks = 4,
                          .steps = 2,
                          .params = 932'608,
                          .final_val_loss = 1.625,
                          .final_val_bits_per_byte = 2.25,
                          .bytes_sent_per_rank = 1100,
                          .seconds = 0.5,
                          .tokens_per_second = 4096,
                          .zero = 1,
                          .offload = true,
                          .memory = {.parameters = 4000,
                                     .gradients = 4000,
                                     .states = 8000,
                                     .buckets = 1000,
                                     .other = 0,
                                     .peak = 17'000},
                          .params_checksum = "00ff00ff00ff00ff"};

class RunFolder : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder); }

  std::string text(const char* name) const {
    std::ifstream file(folder / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write_run() const {
    RunWriter writer(folder, {{"optimizer", "onebit_adam"}, {"steps", "2"}},
                     {"a.txt"});
    writer.begin();
    writer.add(
        StepRow{1, 5.5, 0.001, "exact", 65536, 2048, 1000, 0.25, 17'000});
    writer.add(StepRow{2, std::numeric_limits<double>::quiet_NaN(), 0.002,
                       "compressed", 32768, 2048, 100, 0.25, 17'000});
    writer.add(ValidationRow{2, 1.625});
    writer.finish(kSummary);
  }

  const fs::path folder =
      fs::temp_directory_path() /
      ("thinwire_run_record_test_" +
       std::string(
           ::testing::UnitTest::GetInstance()->current_test_info()->name()));
};

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
            "\"masked\":0,\"heavy\":0,\"revived\":0}\n"
            "{\"step\":2,\"loss\":null,\"lr\":0.002,\"phase\":\"compressed\","
            "\"tokens\":2048,\"bytes_sent\":100,\"seconds\":0.25,"
            "\"loss_scale\":32768.0,\"memory_bytes\":17000,"
            "\"masked\":0,\"heavy\":0,\"revived\":0}\n"
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

// ---- of a run that goes on

StepRow row(std::int64_t step) {
  return {.step = step,
          .loss = 1.0 / static_cast<double>(step),
          .phase = "exact",
          .tokens = 10,
          .bytes_sent = 100,
          .seconds = 0.1};
}

TEST_F(RunFolder, OfARunThatGoesOnKeepsWhatWasBefore) {
  std::string before;
  {
    RunWriter writer(folder, {}, {"a.txt"});
    writer.begin();
    writer.add(row(1));
    writer.add(ValidationRow{1, 3.0});
    writer.add(row(2));
    writer.add(ValidationRow{2, 2.0});
    before = text("metrics.jsonl");
    writer.add(row(3));
    writer.add(ValidationRow{3, 1.0});
  }
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << R"({"step":4,"lo)";
  RunWriter writer(folder, {{"steps", "9"}}, {"a.txt"});
  EXPECT_NE(text("metrics.jsonl").find("\"step\":4"), std::string::npos)
      << "nothing changes before it is loaded";
  writer.go_on(2, {.bytes_sent = 200, .seconds = 0.2, .tokens = 20});
  EXPECT_EQ(text("metrics.jsonl"), before);
  writer.add(row(3));
  const RunRecord& run = writer.so_far();
  ASSERT_EQ(run.steps.size(), 3u);
  EXPECT_EQ(run.validations.size(), 2u);
  Summary summary;
  summary.add(run);
  EXPECT_EQ(summary.bytes_sent_per_rank, 300u);
  EXPECT_NEAR(summary.seconds, 0.3, 1e-12);
  EXPECT_EQ(summary.final_val_loss, 2.0);
  EXPECT_EQ(text("metrics.jsonl").find(before), 0u);
  EXPECT_NE(text("config.json").find("\"steps\": 9"), std::string::npos);
}

TEST_F(RunFolder, OfARunThatWentOnElsewhereHasItsTotals) {
  RunWriter writer(folder, {}, {"a.txt"});
  writer.go_on(
      100,
      {.bytes_sent = 5000, .seconds = 10, .tokens = 1000, .val_loss = 1.5});
  EXPECT_EQ(text("metrics.jsonl"), "");
  writer.add(row(101));
  Summary summary;
  summary.resumed_from = 100;
  summary.saves = 3;
  summary.save_seconds = 0.25;
  summary.add(writer.so_far());
  EXPECT_EQ(summary.bytes_sent_per_rank, 5100u);
  EXPECT_EQ(summary.seconds, 10.1);
  EXPECT_EQ(summary.tokens_per_second, 1010 / 10.1);
  EXPECT_EQ(summary.final_val_loss, 1.5);
  writer.finish(summary);
  const Summary read = read_run(folder).summary;
  EXPECT_EQ(read.resumed_from, 100);
  EXPECT_EQ(read.saves, 3);
  EXPECT_EQ(read.save_seconds, 0.25);
}

TEST_F(RunFolder, MissingOrTornFilesAreNamed) {
  expect_error(ErrorCode::kUnavailable, {"summary.json", "No such file"},
               [&] { (void)read_run(folder); });
  write_run();
  write_file(folder / "metrics.jsonl", "{\"step\":1,\"lo");
  expect_error(ErrorCode::kUnavailable,
               {"metrics.jsonl", "not what train_gpt writes"},
               [&] { (void)read_run(folder); });
  write_file(folder / "summary.json", "{}");
  expect_error(ErrorCode::kUnavailable, {"summary.json", "optimizer"},
               [&] { (void)read_run(folder); });
}

TEST_F(RunFolder, OfARunThatASignalEndedIsReadBack) {
  Summary stopped = kSummary;
  stopped.stopped_at = 1;
  stopped.stopped_by = "SIGINT";
  stopped.final_val_loss = std::numeric_limits<double>::quiet_NaN();
  RunWriter writer(folder, {}, {});
  writer.begin();
  writer.finish(stopped);
  EXPECT_NE(text("summary.json")
                .find("  \"stopped_at\": 1,\n"
                      "  \"stopped_by\": \"SIGINT\"\n}"),
            std::string::npos)
      << text("summary.json");
  const Summary read = read_run(folder).summary;
  EXPECT_EQ(read.stopped_at, 1);
  EXPECT_EQ(read.stopped_by, "SIGINT");
  EXPECT_TRUE(std::isnan(read.final_val_loss));
}

// There is no summary, and the last line may be torn.
TEST_F(RunFolder, OfAKilledRunIsReadAsFarAsItGoes) {
  {
    RunWriter writer(folder,
                     {{"optimizer", "onebit_adam"},
                      {"semantics", "corrected"},
                      {"precision", "bf16"},
                      {"zero", "1"},
                      {"offload", "true"},
                      {"steps", "500"},
                      {"context", "64"},
                      {"batch", "8"},
                      {"accumulate", "2"}},
                     {"a.txt"});
    writer.begin();
    writer.add(StepRow{1, 5.5, 0.001, "exact", 1, 3072, 1000, 0.25, 17'000});
    writer.add(StepRow{2, 5.25, 0.001, "exact", 1, 3072, 1000, 0.5, 18'000});
    writer.add(ValidationRow{2, 1.625});
  }
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << R"({"step":3,"lo)";
  const RunRecord run = read_run(folder);
  EXPECT_EQ(run.steps.size(), 2u);
  const Summary& summary = run.summary;
  EXPECT_EQ(summary.stopped_at, 2);
  EXPECT_EQ(summary.stopped_by, "");
  EXPECT_EQ(summary.optimizer, "onebit_adam");
  EXPECT_EQ(summary.precision, "bf16");
  EXPECT_EQ(summary.ranks, 3);
  EXPECT_EQ(summary.steps, 500);
  EXPECT_EQ(summary.final_val_loss, 1.625);
  EXPECT_EQ(summary.bytes_sent_per_rank, 2000u);
  EXPECT_EQ(summary.seconds, 0.75);
  EXPECT_EQ(summary.tokens_per_second, 8192);
  EXPECT_EQ(summary.zero, 1);
  EXPECT_TRUE(summary.offload);
  EXPECT_EQ(summary.memory.peak, 18'000u);

  write_file(folder / "metrics.jsonl", "");
  EXPECT_EQ(read_run(folder).summary.stopped_at, 0);
  // In the middle it is damage.
  write_file(folder / "metrics.jsonl", "{\"step\":1,\"lo\n{}\n");
  expect_error(ErrorCode::kUnavailable, {"metrics.jsonl"},
               [&] { (void)read_run(folder); });
}

TEST_F(RunFolder, TakesOneRunAtATime) {
  const std::string name = folder.string();
  {
    RunWriter writer(folder, {}, {"a.txt"});
    writer.begin();
    writer.add(ValidationRow{2, 1.625});
    const std::string before = text("metrics.jsonl");
    expect_error(ErrorCode::kUnavailable,
                 {"--out", "another run", name, std::to_string(::getpid())},
                 [&] { const RunWriter second(folder, {}, {"a.txt"}); });
    EXPECT_EQ(text("metrics.jsonl"), before);
  }
  const RunWriter after_its_end(folder, {}, {"a.txt"});
}

TEST_F(RunFolder, IsNotInTheWayOnceItsProcessIsDead) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const RunWriter writer(folder, {}, {"a.txt"});
    ::_exit(fs::exists(folder / ".lock") ? 7 : 8);  // no destructor runs
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(WEXITSTATUS(status), 7);
  const RunWriter writer(folder, {}, {"a.txt"});
}

TEST_F(RunFolder, DoesNotTakeItsInputFromItself) {
  write_run();
  const auto refused = [&](const fs::path& data, const fs::path& out) {
    expect_error(ErrorCode::kInvalidArgument,
                 {"--data", data.string(), "--out"}, [&] {
                   const RunWriter writer(out, {}, {"a.txt", data.string()});
                 });
  };
  refused(folder / "metrics.jsonl", folder);
  refused(folder / "new" / ".." / "metrics.jsonl", folder / ".");
  refused(folder / "deeper" / "a.txt", folder);
  fs::create_symlink(folder, folder.string() + "_link");
  refused(folder / "metrics.jsonl", folder.string() + "_link");
  fs::remove(folder.string() + "_link");
  EXPECT_NE(text("metrics.jsonl"), "");
  // Beside it, whatever the names begin with.
  const RunWriter writer(folder / "out", {}, {(folder / "out.txt").string()});
}

TEST_F(RunFolder, AFolderThatCannotBeMadeIsNamed) {
  fs::create_directories(folder);
  write_file(folder / "file", "");
  expect_error(ErrorCode::kUnavailable, {"file/run", "cannot be made"}, [&] {
    const RunWriter writer(folder / "file" / "run", {}, {});
  });
}

}  // namespace
}  // namespace thinwire::train_gpt
