// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/registry.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "support/errors.h"

namespace thinwire::comm::registry_test {
namespace {

using test::expect_error;

// Variables as this test wants them, and as they were afterwards.
class FromEnvironment : public ::testing::Test {
 protected:
  ~FromEnvironment() override {
    for (const auto& [name, value] : before_) restore(name, value);
  }

  void set(const std::string& name, const char* value) {
    const char* old = std::getenv(name.c_str());
    before_.emplace(name, old ? std::optional<std::string>(old) : std::nullopt);
    restore(name, value ? std::optional<std::string>(value) : std::nullopt);
  }

 private:
  static void restore(const std::string& name,
                      const std::optional<std::string>& value) {
    if (value)
      ::setenv(name.c_str(), value->c_str(), 1);
    else
      ::unsetenv(name.c_str());
  }

  std::map<std::string, std::optional<std::string>> before_;
};

TEST(Registry, KnowsLocalWhichIsAlwaysThere) {
  const Backend& local = backends().front();
  EXPECT_EQ(local.name, "local");
  EXPECT_EQ(local.why_unavailable(), "");
  EXPECT_NE(local.version(), "");
  const auto comm = local.make({});
  EXPECT_EQ(comm->size(), 1);
  EXPECT_EQ(comm->backend(), "local");
}

TEST(Registry, SaysVersionOrReasonOfEveryBackend) {
  for (const Backend& backend : backends())
    EXPECT_NE(backend.version().empty(), backend.why_unavailable().empty())
        << backend.name;
}

TEST_F(FromEnvironment, IsALocalGroupOfOneWithoutALauncher) {
  set("THINWIRE_COMM", nullptr);
  set("THINWIRE_TIMEOUT", "5s");
  const auto comm = from_environment();
  EXPECT_EQ(comm->backend(), "local");
  EXPECT_EQ(comm->size(), 1);
  EXPECT_EQ(comm->timeout(), std::chrono::seconds(5));
}

TEST_F(FromEnvironment, RefusesAnUnknownBackendAndListsTheKnownOnes) {
  set("THINWIRE_COMM", "carrier_pigeon");
  expect_error(ErrorCode::kInvalidArgument,
               {"THINWIRE_COMM", "local, mpi", "carrier_pigeon"},
               [] { const auto comm = from_environment(); });
}

TEST_F(FromEnvironment, RefusesToRunEveryRankOfALaunchAlone) {
  set("THINWIRE_COMM", "local");
  set("OMPI_COMM_WORLD_SIZE", "3");
  expect_error(ErrorCode::kUnavailable, {"3 ranks", "local", "alone"},
               [] { const auto comm = from_environment(); });
}

}  // namespace
}  // namespace thinwire::comm::registry_test
