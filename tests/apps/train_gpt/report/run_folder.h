// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "apps/train_gpt/report/run_record.h"

namespace thinwire::train_gpt {

namespace fs = std::filesystem;

inline const Summary kSummary = {.optimizer = "onebit_adam",
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
    (void)writer.finish(kSummary);
  }

  const fs::path folder =
      fs::temp_directory_path() /
      ("thinwire_run_record_test_" +
       std::string(
           ::testing::UnitTest::GetInstance()->current_test_info()->name()));
};

}  // namespace thinwire::train_gpt
