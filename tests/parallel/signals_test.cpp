#include "parallel/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tandem {
namespace {

// Handlers and flag live as long as their process, so each case has a process of its own.
using SignalsDeathTest = ::testing::Test;

TEST(SignalsDeathTest, TheFirstSignalAsksTheSecondEnds) {
  EXPECT_EXIT(
      {
        install_signal_handlers();
        if (stop_requested()) _exit(1);
        raise(SIGTERM);
        if (!stop_requested() || stop_signal() != SIGTERM) _exit(2);
        raise(SIGINT);
        _exit(3);
      },
      ::testing::ExitedWithCode(130), "");
}

TEST(SignalsDeathTest, ABrokenPipeIsAnErrorCodeNotASignal) {
  EXPECT_EXIT(
      {
        install_signal_handlers();
        int ends[2];
        if (pipe(ends) != 0) _exit(1);
        close(ends[0]);
        _exit(write(ends[1], "x", 1) == -1 ? 0 : 2);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(SignalsDeathTest, SigcontOfSomebodyElseThanTheLauncherMeansNothing) {
  EXPECT_EXIT(
      {
        setenv("OMPI_COMM_WORLD_SIZE", "1", 1);  // the launcher is then our parent, not ourselves
        install_signal_handlers();
        note_running();
        usleep(600'000);
        note_running();
        raise(SIGCONT);
        _exit(stop_requested() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(SignalsDeathTest, SigcontOfTheLauncherToARunningProcessAsksToStop) {
  EXPECT_EXIT(
      {
        setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
        const pid_t child = fork();
        if (child == 0) {
          install_signal_handlers();
          for (int i = 0; i < 300 && !stop_requested(); ++i) {
            note_running();
            usleep(10'000);
          }
          _exit(stop_signal() == SIGCONT ? 0 : 1);
        }
        usleep(1'200'000);  // past the half second after the child's start
        kill(child, SIGCONT);
        int status = 0;
        waitpid(child, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tandem
