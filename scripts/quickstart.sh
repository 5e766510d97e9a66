#!/usr/bin/env bash
# From a fresh Debian or Ubuntu machine to a first result: installs packages, builds the program, runs
# jobs/smoke.yaml on two ranks with the tiny checkpoint of the tests and prints what is in the result
# file. Needs root or sudo only where packages are missing. Another job: scripts/quickstart.sh JOB.yaml
set -euo pipefail
cd "$(dirname "$0")/.."
job=${1:-jobs/smoke.yaml}

scripts/install_packages.sh
if command -v nvidia-smi >/dev/null || command -v nvcc >/dev/null; then
  echo "quickstart: this version runs jobs on the CPU; the CUDA backend is a build of its own (README.md, Limits)"
fi

cmake --preset cpu
cmake --build --preset cpu --target tandem

# mpirun refuses root and more ranks than cores unless told; both are normal on a small or rented machine.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
# Two ranks share the cores.
threads=$(($(nproc) / 2))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}

name=$(basename "$job" .yaml)
result=results/quickstart-$name-$(date -u +%Y%m%dT%H%M%SZ).h5
scripts/mpirun_job.sh -np 2 --tune configs/openmpi/tandem-mca.conf \
  build/cpu/tandem run "$job" --output "$result"

echo
build/cpu/tandem report "$result"
((EUID != 0)) || as_root=" --allow-run-as-root"
cat <<END

The result file: $PWD/$result
  what is in it              results/README.md
  the paragraph for a paper  build/cpu/tandem report $result --methods
  run it again               mpirun${as_root:-} --oversubscribe -np 2 build/cpu/tandem run $job
END
