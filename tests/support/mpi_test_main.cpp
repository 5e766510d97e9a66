#include "tests/support/mpi_test_main.h"

#include <gtest/gtest.h>

#include <memory>

#include "parallel/mpi_env.h"

namespace tandem::testing {
namespace {
std::unique_ptr<HostComm> g_world;
}

const HostComm& world() { return *g_world; }

}  // namespace tandem::testing

int main(int argc, char** argv) {
  tandem::MpiEnv mpi(&argc, &argv);
  ::testing::InitGoogleTest(&argc, argv);
  tandem::testing::g_world = std::make_unique<tandem::HostComm>(tandem::HostComm::world());
  // Passing tests speak once; failures speak on every rank.
  if (mpi.rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    struct FailuresOnly : ::testing::EmptyTestEventListener {
      explicit FailuresOnly(int r) : rank(r) {}
      void OnTestPartResult(const ::testing::TestPartResult& result) override {
        if (result.failed()) {
          fprintf(stderr, "[rank %d] %s:%d %s\n", rank, result.file_name(), result.line_number(),
                  result.summary());
        }
      }
      int rank;
    };
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly(mpi.rank()));
  }
  const int result = RUN_ALL_TESTS();
  int worst = 0;
  for (const int r : tandem::testing::g_world->all_gather(result)) worst = worst > r ? worst : r;
  tandem::testing::g_world.reset();
  return worst;
}
