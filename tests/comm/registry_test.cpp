// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/registry.h"

#include <gtest/gtest.h>

#include <chrono>

#include "support/environment.h"
#include "support/errors.h"

namespace thinwire::comm::registry_test {
namespace {

using test::expect_error;
using test::ScopedVariable;

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

TEST(FromEnvironment, IsALocalGroupOfOneWithoutALauncher) {
  const ScopedVariable backend("THINWIRE_COMM", nullptr);
  const ScopedVariable timeout("THINWIRE_TIMEOUT", "5s");
  const auto comm = from_environment();
  EXPECT_EQ(comm->backend(), "local");
  EXPECT_EQ(comm->size(), 1);
  EXPECT_EQ(comm->timeout(), std::chrono::seconds(5));
}

TEST(FromEnvironment, RefusesAnUnknownBackendAndListsTheKnownOnes) {
  const ScopedVariable backend("THINWIRE_COMM", "carrier_pigeon");
  expect_error(ErrorCode::kInvalidArgument,
               {"THINWIRE_COMM", "local, mpi", "carrier_pigeon"},
               [] { const auto comm = from_environment(); });
}

TEST(FromEnvironment, RefusesToRunEveryRankOfALaunchAlone) {
  const ScopedVariable backend("THINWIRE_COMM", "local");
  const ScopedVariable launched("OMPI_COMM_WORLD_SIZE", "3");
  expect_error(ErrorCode::kUnavailable, {"3 ranks", "local", "alone"},
               [] { const auto comm = from_environment(); });
}

}  // namespace
}  // namespace thinwire::comm::registry_test
