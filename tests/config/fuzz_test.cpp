// SPDX-License-Identifier: Apache-2.0
// fuzz/config_fuzz.cpp over its corpus and over mutations of it, the same every
// time. Something wrong ends the process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size);

namespace thinwire::config::fuzz_test {
namespace {

std::vector<std::string> corpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(
           THINWIRE_SOURCE_DIR "/fuzz/config_corpus"))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> texts;
  for (const auto& path : paths) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    texts.push_back(text.str());
  }
  return texts;
}

void run(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()),
                         text.size());
}

TEST(ConfigFuzz, ReadsOrRefusesItsCorpus) {
  const auto texts = corpus();
  ASSERT_GE(texts.size(), 10u);
  for (const std::string& text : texts) run(text);
}

TEST(ConfigFuzz, ReadsOrRejectsWhatIsCloseToIt) {
  constexpr int kMutations = 20'000;
  const auto texts = corpus();
  test::Mutator mutate(12345);
  for (int i = 0; i < kMutations; ++i) {
    const auto at = static_cast<std::size_t>(i);
    run(mutate(texts[at % texts.size()], texts[(at / 7) % texts.size()]));
  }
}

}  // namespace
}  // namespace thinwire::config::fuzz_test
