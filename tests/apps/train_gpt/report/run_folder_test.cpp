// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/report/run_record.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "apps/train_gpt/report/run_folder.h"
#include "support/errors.h"

namespace thinwire::train_gpt::run_folder_test {
namespace {

using test::expect_error;

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
  Summary summary;
  summary.add(writer.totals());
  const RunRecord run = writer.finish(summary);
  ASSERT_EQ(run.steps.size(), 3u);
  EXPECT_EQ(run.validations.size(), 2u);
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
  summary.add(writer.totals());
  EXPECT_EQ(summary.bytes_sent_per_rank, 5100u);
  EXPECT_EQ(summary.seconds, 10.1);
  EXPECT_EQ(summary.tokens_per_second, 1010 / 10.1);
  EXPECT_EQ(summary.final_val_loss, 1.5);
  (void)writer.finish(summary);
  const Summary read = read_run(folder).summary;
  EXPECT_EQ(read.resumed_from, 100);
  EXPECT_EQ(read.saves, 3);
  EXPECT_EQ(read.save_seconds, 0.25);
}

// By the allocator's own count of bytes in use: a long run may not grow.
TEST_F(RunFolder, OfALongRunHoldsNoRowsInMemory) {
  RunWriter writer(folder, {}, {"a.txt"});
  writer.begin();
  const auto write_rows = [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t step = from; step < to; ++step) {
      writer.add(row(step));
      writer.add(ValidationRow{step, 2.0});
    }
  };
  write_rows(1, 100);
  const std::size_t before = mallinfo2().uordblks;
  write_rows(100, 5100);
  EXPECT_LT(mallinfo2().uordblks, before + 5000);
  EXPECT_EQ(writer.finish({}).steps.size(), 5099u);
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
  (void)writer.finish(stopped);
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
}  // namespace thinwire::train_gpt::run_folder_test
