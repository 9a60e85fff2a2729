// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "apps/train_gpt/report/chart.h"
#include "apps/train_gpt/report/step_time.h"
#include "apps/train_gpt/report/units.h"

namespace thinwire::train_gpt::report_test {
namespace {

RunRecord make_run(const std::string& optimizer, std::int64_t steps) {
  RunRecord run;
  run.summary = {.optimizer = optimizer,
                 .semantics = "corrected",
                 .ranks = 4,
                 .steps = steps,
                 .params = 932'608,
                 .final_val_loss = 1.6123,
                 .final_val_bits_per_byte = 2.3261,
                 .bytes_sent_per_rank = 123'456'789,
                 .seconds = 61.25,
                 .tokens_per_second = 16'700,
                 .memory = {.parameters = 4000,
                            .gradients = 4000,
                            .states = 8000,
                            .buckets = 1000,
                            .other = 0,
                            .peak = 17'000},
                 .params_checksum = "0123456789abcdef"};
  run.settings = {{"optimizer", optimizer}, {"steps", std::to_string(steps)}};
  const bool onebit = optimizer != "adam";
  const bool zero_one = optimizer == "zero_one_adam";
  for (std::int64_t step = 1; step <= steps; ++step) {
    const bool compressed = onebit && step > steps / 5;
    const bool local = zero_one && step > steps / 2 && step % 4 != 0;
    run.steps.push_back({step, 5.5 / static_cast<double>(step), 1e-3,
                         local        ? "local"
                         : compressed ? "compressed"
                                      : "exact",
                         1, 2048,
                         local        ? 0u
                         : compressed ? 176'000u
                                      : 5'595'648u,
                         0.1});
    if (step % 10 == 0) run.validations.push_back({step, 2.0});
  }
  return run;
}

std::string line_with(const std::string& text, const std::string& part) {
  const auto at = text.find(part);
  if (at == std::string::npos) return {};
  const auto begin = text.rfind('\n', at) + 1;
  return text.substr(begin, text.find('\n', at) - begin);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(Report, NeedsNothingFromOutside) {
  const std::string html =
      render_report({make_run("adam", 50), make_run("onebit_adam", 50)});
  for (const char* part : {"http:", "https:", "src=", "href=", "@import",
                           "url(", "<script", "<link"}) {
    EXPECT_EQ(count(html, part), 0u) << part;
  }
  EXPECT_EQ(count(html, "prefers-color-scheme: dark"), 1u);
  EXPECT_EQ(count(html, "<svg "), 5u);
  EXPECT_EQ(count(html, "</svg>"), 5u);
}

TEST(Report, ShowsTheResultsOfEveryRun) {
  const std::string html =
      render_report({make_run("adam", 50), make_run("onebit_adam", 50)});
  EXPECT_NE(html.find("Comparison of 2 runs"), std::string::npos);
  for (const char* part : {"1.6123", "2.3261", "5.60 MB", "176 KB", "31.8×",
                           "123 MB", "61.2", "0123456789abcdef"}) {
    EXPECT_GE(count(html, part), 1u) << part;
  }
}

TEST(Report, TellsZeroInFewBitsFromExactZero) {
  RunRecord exact = make_run("adam", 50);
  exact.summary.zero = 2;
  RunRecord low_bit = exact;
  low_bit.summary.zero_bits = "4/4";
  const std::string html = render_report({exact, low_bit});
  EXPECT_GE(count(html, "</span>adam</td>"), 1u);
  EXPECT_GE(count(html, "</span>adam, ZeRO-2 in 4/4 bits</td>"), 1u);
}

TEST(Report, HasAStripOfThePhasesOfEveryRun) {
  const std::string html =
      render_report({make_run("adam", 48), make_run("onebit_adam", 48),
                     make_run("zero_one_adam", 48)});
  EXPECT_EQ(count(html, "<g class=\"strip "), 3u);
  EXPECT_EQ(count(html, "zero_one_adam, phases"), 1u);
  // Steps 25 to 48: three local steps, then one that exchanges.
  EXPECT_EQ(count(html, "fill-opacity=\"0.10\""), 6u);
  EXPECT_EQ(count(html, "fill-opacity=\"0.45\""), 1u + 1u + 6u);
  EXPECT_EQ(count(html, "fill-opacity=\"1.00\""), 3u);
}

TEST(Report, StripsOfLongRunsShowTheMeanOfTheirSteps) {
  const std::string html = render_report({make_run("zero_one_adam", 6000)});
  EXPECT_LE(count(html, "<rect "), 600u);
}

TEST(Report, TablesShowLocalStepsAndRounds) {
  const std::vector<RunRecord> runs = {make_run("adam", 48),
                                       make_run("zero_one_adam", 48)};
  const std::string table = render_table(runs);
  EXPECT_EQ(count(table, "sent/local step"), 1u);
  EXPECT_EQ(count(table, " 0 B"), 1u) << "only 0/1 Adam has local steps";
  EXPECT_EQ(count(table, " 0.625"), 1u) << table;
  const std::string html = render_report(runs);
  EXPECT_EQ(count(html, ">0 B<"), 1u);
  EXPECT_EQ(count(html, ">0.625<"), 1u);
  EXPECT_EQ(count(html, "rounds per step"), 1u);
  EXPECT_EQ(count(html, "memory of a rank, at its peak"), 1u);
  EXPECT_EQ(count(html, ">17.0 KB<"), 2u);
}

TEST(Report, ARunAloneThatSentNothingHasNoChartsOfBytes) {
  RunRecord run = make_run("adam", 20);
  run.summary.ranks = 1;
  run.summary.bytes_sent_per_rank = 0;
  for (StepRow& row : run.steps) row.bytes_sent = 0;
  const std::string html = render_report({run});
  EXPECT_NE(html.find("Training with adam"), std::string::npos);
  EXPECT_NE(html.find("20 steps on 1 rank<"), std::string::npos);
  EXPECT_EQ(count(html, "<svg "), 3u);
}

TEST(Report, BearsOneStepAndLossesThatAreNotFinite) {
  RunRecord run = make_run("adam", 1);
  run.steps[0].loss = std::numeric_limits<double>::quiet_NaN();
  run.summary.final_val_loss = std::numeric_limits<double>::infinity();
  const std::string html = render_report({run, run});
  EXPECT_EQ(count(html, "=\"nan\""), 0u);
  EXPECT_EQ(count(html, "nan,"), 0u);
  EXPECT_EQ(count(html, "adam (1)"), count(html, "adam (2)"));
}

TEST(Report, TableHasALineARun) {
  const std::string table =
      render_table({make_run("adam", 50), make_run("onebit_adam", 50)});
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
  EXPECT_EQ(table.find("optimizer"), 0u);
  EXPECT_NE(table.find("\nonebit_adam "), std::string::npos);
  EXPECT_EQ(count(table, "176 KB"), 1u);
}

TEST(Report, SaysWhereAStepsTimeWent) {
  RunRecord run = make_run("adam", 4);
  for (StepRow& row : run.steps) {
    row.seconds = 0.1;
    row.wait_seconds = 0.02;
    row.update_seconds = 0.03;
    row.exchange_seconds = 0.08;
  }
  const StepTime time = step_time(run);
  EXPECT_NEAR(time.computing, 0.05, 1e-12);
  EXPECT_NEAR(time.waiting, 0.02, 1e-12);
  EXPECT_NEAR(time.updating, 0.03, 1e-12);
  EXPECT_NEAR(time.overlap, 0.75, 1e-12);
  const std::string html = step_time_html({run});
  for (const char* cell : {">16700<", ">50<", ">20<", ">30<", ">75 %<"})
    EXPECT_NE(html.find(cell), std::string::npos) << cell << " in " << html;
  // Of a run that recorded no parts only the whole is known.
  EXPECT_EQ(step_time_html({make_run("adam", 4)}).find(">75 %<"),
            std::string::npos);
}

TEST(Chart, LinearTicksAreRoundAndCover) {
  EXPECT_EQ(ticks(0, 500, false),
            (std::vector<double>{0, 100, 200, 300, 400, 500}));
  const std::vector<double> around = ticks(1.63, 4.97, false);
  EXPECT_EQ(around, (std::vector<double>{1, 2, 3, 4, 5}));
  EXPECT_EQ(ticks(3, 3, false), std::vector<double>{3});
}

TEST(Chart, LogarithmicTicksAreDecadesOrFiner) {
  EXPECT_EQ(ticks(1e3, 1e7, true),
            (std::vector<double>{1e3, 1e4, 1e5, 1e6, 1e7}));
  EXPECT_EQ(ticks(10, 1000, true),
            (std::vector<double>{10, 20, 50, 100, 200, 500, 1000}));
}

TEST(Chart, LeavesOutWhatALogarithmicAxisCannotShow) {
  const Chart chart{
      "t",
      {"x", false, format_count},
      {"y", true, format_bytes},
      {{"s", 0, Series::Style::kDots, {{1, 0}, {2, 10}, {3, 20}}}},
      {}};
  EXPECT_EQ(count(render_svg(chart), "<circle "), 2u);
}

TEST(Chart, EmptySeriesStillGiveAnImage) {
  const Chart chart{"t",
                    {"x", false, format_count},
                    {"y", false, format_count},
                    {{"s", 0, Series::Style::kLine, {}}},
                    {}};
  const std::string svg = render_svg(chart);
  EXPECT_EQ(count(svg, "nan"), 0u);
  EXPECT_EQ(count(svg, "inf"), 0u);
}

TEST(Chart, NamesAreEscaped) {
  EXPECT_EQ(escape_html("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
  RunRecord run = make_run("<script>", 5);
  EXPECT_EQ(count(render_report({run}), "<script>"), 0u);
}

TEST(Report, MarksRunsThatDidNotReachTheirEnd) {
  RunRecord killed = make_run("onebit_adam", 40);
  killed.summary.stopped_at = 37;
  killed.summary.final_val_loss = std::numeric_limits<double>::quiet_NaN();
  killed.summary.final_val_bits_per_byte = killed.summary.final_val_loss;
  killed.summary.ranks = 0;
  killed.summary.params = 0;
  const std::vector<RunRecord> runs = {killed, make_run("adam", 40)};
  const std::string mark = "onebit_adam, stopped at step 37";
  const std::string html = render_report(runs);
  EXPECT_GE(count(html, mark), 3u);  // table, legends, settings
  EXPECT_EQ(html.find("nan"), std::string::npos);
  EXPECT_NE(html.find("A byte-level GPT, 40 steps<"), std::string::npos);
  const std::string table = render_table(runs);
  EXPECT_TRUE(line_with(table, mark).starts_with(mark + " ")) << table;
  // Both runs' numbers stand below one another.
  const auto column = [&](const std::string& name) {
    return line_with(table, name).find("61.2");
  };
  EXPECT_GT(column("adam   "), 0u);
  EXPECT_NE(column("adam   "), std::string::npos) << table;
}

}  // namespace
}  // namespace thinwire::train_gpt::report_test
