// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace thinwire::train_gpt::report_test {
namespace {

RunRecord make_run(const std::string& optimizer, std::int64_t steps) {
  RunRecord run;
  const bool onebit = optimizer != "adam";
  const bool zero_one = optimizer == "zero_one_adam";
  for (std::int64_t step = 1; step <= steps; ++step) {
    const bool compressed = onebit && step > steps / 5;
    const bool local = zero_one && step > steps / 2 && step % 4 != 0;
    run.steps.push_back({.step = step,
                         .loss = 5.5 / static_cast<double>(step),
                         .phase = local        ? "local"
                                  : compressed ? "compressed"
                                               : "exact",
                         .tokens = 2048,
                         .bytes_sent = local        ? 0u
                                       : compressed ? 176'000u
                                                    : 5'595'648u,
                         .seconds = 0.1,
                         .wait_seconds = 0.02,
                         .update_seconds = 0.03});
    if (step % 10 == 0) run.validations.push_back({step, 2.0});
  }
  run.summary = summary_of({.bytes_sent = 123'456'789,
                            .seconds = 61.25,
                            .tokens = 1'022'875,
                            .val_loss = 1.6123});
  run.summary["optimizer"] = optimizer;
  run.summary["ranks"] = 4;
  run.summary["steps"] = steps;
  run.summary["params"] = 932'608;
  run.summary["memory"] = {{"peak", 17'000}};
  run.summary["params_checksum"] = "0123456789abcdef";
  run.settings = {{"optimizer", optimizer}, {"steps", std::to_string(steps)}};
  return run;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1))
    ++found;
  return found;
}

// The curves that the page draws.
Json curves_in(const std::string& html) {
  const std::string begin = "const runs = ";
  const std::size_t at = html.find(begin) + begin.size();
  return Json::parse(html.substr(at, html.find(";\n", at) - at));
}

TEST(Report, NeedsNothingFromOutside) {
  const std::string html =
      render_report({make_run("adam", 50), make_run("onebit_adam", 50)});
  EXPECT_EQ(count(html, "http://www.w3.org/2000/svg"), 1u) << "no address";
  EXPECT_EQ(count(html, "http"), 1u);
  for (const char* part :
       {"src=", "href=", "@import", "url(", "<link", "fetch(", "{{"})
    EXPECT_EQ(count(html, part), 0u) << part;
  EXPECT_EQ(count(html, "prefers-color-scheme: dark"), 1u);
}

TEST(Report, ShowsTheResultsOfEveryRun) {
  const std::string html =
      render_report({make_run("adam", 50), make_run("onebit_adam", 50)});
  EXPECT_EQ(count(html, "Comparison of 2 runs"), 2u);  // title and heading
  for (const char* part :
       {"1.6123", "2.3261", "5.60 MB", "176 KB", "2.3×", "123 MB", "61.2",
        "0123456789abcdef", "17.0 KB", ">16700<", ">20<", ">30<"})
    EXPECT_GE(count(html, part), 1u) << part;
  EXPECT_EQ(count(html,
                  "A byte-level GPT with 933k parameters, 50 steps on 4 "
                  "ranks"),
            1u);
}

// A resumed run may have sent its first bytes with another number of ranks.
TEST(Report, ComparesBytesWithFp32AveragesUnlessARunWasResumed) {
  RunRecord run = make_run("onebit_adam", 50);
  // 50 steps of 2 * 3/4 * 4 bytes for each of 932,608 parameters: 279.8 MB.
  run.summary["bytes_sent_per_rank"] = 27'978'240;
  EXPECT_EQ(count(render_report({run}), ">10.0×<"), 1u);
  run.summary["resumed_from"] = 30;
  EXPECT_EQ(count(render_report({run}), "×<"), 0u);
}

TEST(Report, DrawsLossByStepBytesAndTime) {
  const Json curves = curves_in(
      render_report({make_run("adam", 500), make_run("onebit_adam", 20)}));
  ASSERT_EQ(curves.size(), 2u);
  EXPECT_EQ(curves[0].at("name"), "adam");
  EXPECT_EQ(curves[0].at("color"), "c0");
  EXPECT_EQ(curves[1].at("color"), "c1");
  // Means over 1/50 of a run, or every step of a short one.
  const Json& training = curves[0].at("training");
  ASSERT_EQ(training.size(), 50u);
  double mean = 0;
  for (int step = 1; step <= 10; ++step) mean += 5.5 / step / 10;
  EXPECT_NEAR(training[0][1].get<double>(), mean, 1e-12);
  EXPECT_EQ(curves[1].at("training").size(), 20u);
  const Json& held_out = curves[1].at("heldOut");
  ASSERT_EQ(held_out.size(), 2u);
  EXPECT_EQ(held_out[0][0], 10);
  EXPECT_EQ(held_out[0][1], 4 * 5'595'648 + 6 * 176'000);
  EXPECT_NEAR(held_out[0][2].get<double>(), 1, 1e-12);
  EXPECT_EQ(held_out[0][3], 2.0);
}

TEST(Report, TellsZeroInFewBitsFromExactZero) {
  RunRecord low_bit = make_run("adam", 50);
  low_bit.summary["zero"] = 2;
  low_bit.summary["zero_bits"] = "4/4";
  const std::string html = render_report({make_run("adam", 50), low_bit});
  EXPECT_GE(count(html, "</i>adam</td>"), 1u);
  EXPECT_GE(count(html, "</i>adam, ZeRO-2 in 4/4 bits</td>"), 1u);
}

TEST(Report, TablesShowLocalStepsAndRounds) {
  std::vector<RunRecord> runs = {make_run("adam", 48),
                                 make_run("zero_one_adam", 48)};
  const std::string table = render_table(runs);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
  EXPECT_EQ(table.find("optimizer"), 0u);
  EXPECT_NE(table.find("\nzero_one_adam "), std::string::npos);
  EXPECT_EQ(count(table, "176 KB"), 1u);
  EXPECT_EQ(count(table, "sent/local step"), 1u);
  EXPECT_EQ(count(table, " 0 B"), 1u) << "only 0/1 Adam has local steps";
  EXPECT_EQ(count(table, " 0.625"), 1u) << table;
  const std::string html = render_report(runs);
  EXPECT_EQ(count(html, ">0 B<"), 1u);
  EXPECT_EQ(count(html, ">0.625<"), 1u);
  // A step in which only a flag travelled is no round.
  for (StepRow& row : runs[1].steps)
    if (row.phase == "local") row.bytes_sent = 4;
  EXPECT_EQ(count(render_table({runs[1]}), " 0.625"), 1u);
}

TEST(Report, BearsOneStepAndLossesThatAreNotFinite) {
  RunRecord run = make_run("adam", 1);
  run.steps[0].loss = std::numeric_limits<double>::quiet_NaN();
  run.summary["final_val_loss"] = std::numeric_limits<double>::infinity();
  const std::string html = render_report({run, run});
  EXPECT_TRUE(curves_in(html)[0].at("training")[0][1].is_null());
  EXPECT_EQ(count(html, "adam (1)"), count(html, "adam (2)"));
  EXPECT_NO_THROW(render_report({RunRecord{.summary = summary_of({})}}));
}

TEST(Report, NamesAreEscapedInTablesAndInTheScript) {
  const std::string html = render_report({make_run("</script><b>", 5)});
  EXPECT_EQ(count(html, "</script>"), 1u);
  EXPECT_EQ(count(html, "<b>"), 0u);
  EXPECT_GE(count(html, "&lt;/script>&lt;b>"), 1u);
  EXPECT_EQ(curves_in(html)[0].at("name"), "</script><b>");
}

TEST(Report, MarksRunsThatDidNotReachTheirEnd) {
  RunRecord killed = make_run("onebit_adam", 40);
  killed.summary["stopped_at"] = 37;
  killed.summary["final_val_loss"] = nullptr;
  killed.summary["ranks"] = 0;
  killed.summary["params"] = 0;
  RunRecord resumed = make_run("adam", 40);
  resumed.summary["resumed_from"] = 30;
  const std::vector<RunRecord> runs = {killed, resumed};
  const std::string html = render_report(runs);
  EXPECT_GE(count(html, "onebit_adam, stopped at step 37"), 3u);
  EXPECT_EQ(count(html, ">nan<"), 0u);
  EXPECT_EQ(count(html, "A byte-level GPT, 40 steps<"), 1u);
  const std::string table = render_table(runs);
  // Both runs' numbers stand below one another: in characters, not in bytes.
  const auto column = [&](const std::string& name) {
    const std::size_t at = table.find('\n' + name);
    const std::string before = table.substr(at, table.find("61.2", at) - at);
    return std::ranges::count_if(before, [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    });
  };
  EXPECT_EQ(column("onebit_adam, stopped at step 37 "),
            column("adam, resumed at step 30 "))
      << table;
}

}  // namespace
}  // namespace thinwire::train_gpt::report_test
