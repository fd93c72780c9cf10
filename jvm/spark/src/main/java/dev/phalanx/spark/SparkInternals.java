package dev.phalanx.spark;

import java.io.File;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkContext$;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.util.ShutdownHookManager;
import org.apache.spark.util.Utils;
import scala.runtime.BoxedUnit;

/** What Spark has for its own packages only: Scala hides it from others, Java doesn't. All of it is here. */
final class SparkInternals {
  private SparkInternals() {}

  /** Whether the executor of this id is the driver itself: on a local master. */
  static boolean isDriver(String executorId) {
    return SparkContext$.MODULE$.DRIVER_IDENTIFIER().equals(executorId);
  }

  /** Spark's local directory in this JVM, which ends with the application. */
  static File localDir() {
    SparkEnv env = SparkEnv.get();
    return env == null
        ? new File(System.getProperty("java.io.tmpdir"))
        : new File(Utils.getLocalDir(env.conf()));
  }

  /** This host's name, by Spark's rules. */
  static String hostName() {
    return Utils.localHostName();
  }

  /** Deletes a folder when the JVM ends. */
  static void deleteAtShutdown(File folder) {
    ShutdownHookManager.registerShutdownDeleteDir(folder);
  }

  /** Deletes a folder now. */
  static void delete(File folder) {
    ShutdownHookManager.removeShutdownDeleteDir(folder);
    Utils.deleteRecursively(folder);
  }

  /** Runs `action` when the JVM is asked to end, before Spark's own context is stopped; the token removes it. */
  static Object beforeShutdown(Runnable action) {
    return ShutdownHookManager.addShutdownHook(
        ShutdownHookManager.SPARK_CONTEXT_SHUTDOWN_PRIORITY() + 10,
        () -> {
          action.run();
          return BoxedUnit.UNIT;
        });
  }

  /** Takes back `beforeShutdown`. */
  static void notBeforeShutdown(Object token) {
    ShutdownHookManager.removeShutdownHook(token);
  }

  /** How many tasks of the default resource profile the registered executors can run at once. */
  static int taskSlots(SparkContext context) {
    return context.maxNumConcurrentTasks(
        context.resourceProfileManager().defaultResourceProfile());
  }

  /** Throws what Spark expects of a task that was killed, if this one was. */
  static void throwIfKilled(TaskContext context) {
    context.killTaskIfInterrupted();
  }

  /** Why this task was killed; null if it wasn't. */
  static String killReason(TaskContext context) {
    return context.getKillReason().isDefined() ? context.getKillReason().get() : null;
  }

  /** The PYTHONPATH of PySpark's own modules in this JVM's Spark. */
  static String sparkPythonPath() {
    return PythonUtils.sparkPythonPath();
  }
}
