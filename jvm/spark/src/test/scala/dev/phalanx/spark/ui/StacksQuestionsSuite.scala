package dev.phalanx.spark.ui

import scala.jdk.CollectionConverters._

import org.apache.spark.util.kvstore.InMemoryStore

import dev.phalanx.spark.support.PhalanxSuite

/** The button that asks for stacks: who may press it, and what becomes of the question. */
class StacksQuestionsSuite extends PhalanxSuite {
  private var now = 1000L
  private val form = "id=a+b"

  private def acls(extra: (String, String)*) = (Map(
    "spark.acls.enable" -> "true",
    "spark.ui.view.acls" -> "viewer,owner",
    "spark.modify.acls" -> "owner"
  ) ++ extra).asJava

  private def running(id: String) = Samples.event(Samples.run(id, "state" -> "\"running\"", "ended" -> "null"))

  test("who may view and not modify is refused, who may not view sees nothing, and who may modify asks") {
    val questions = new StacksQuestions(() => now)
    val tab = new ServedTab(acls(), questions)
    try {
      tab.store.take(running("a b"))
      val page = "/phalanx/run/?id=a+b"
      assert(tab.ask("stranger", page, null).statusCode == 403)
      assert(tab.ask("stranger", "/phalanx/run/stacks/", form).statusCode == 403, "TAB-3")
      assert(tab.ask("viewer", page, null).body.contains("""action="stacks/""""))
      val refused = tab.ask("viewer", "/phalanx/run/stacks/", form)
      assert(refused.statusCode == 403 && refused.body.contains("spark.modify.acls"), "TAB-3")
      assert(!questions.isAsked, "TAB-3")
      assert(tab.ask("owner", "/phalanx/run/stacks/", "id=none").statusCode == 404)
      assert(tab.ask("owner", "/phalanx/run/stacks/?id=a+b", null).statusCode == 405, "a link can't ask")
      assert(!questions.isAsked)
      val asked = tab.ask("owner", "/phalanx/run/stacks/", form)
      assert(asked.statusCode == 303 && asked.headers.firstValue("Location").get == "../?id=a+b", "TAB-15")
      assert(questions.take("a b"))
      assert(tab.ask("viewer", page, null).body.contains("is asked for the stacks"))
      questions.answer("a b", "ranks 0-3:\n  <script>alert(2)</script>")
      val shown = tab.ask("viewer", page, null).body
      assert(shown.contains("Stacks at") && shown.contains("&lt;script&gt;alert(2)"), "TAB-14")
    } finally tab.close()
  }

  test("a question is given to the driver once, and one that nobody answers is told so and may be asked again") {
    val questions = new StacksQuestions(() => now)
    questions.answer("a", "nobody asked")
    assert(questions.of("a").isEmpty && !questions.isAsked)
    questions.ask("a")
    assert(!questions.take("b") && questions.take("a") && !questions.take("a"), "TAB-12")
    questions.ask("a")
    assert(!questions.take("a"), "TAB-12: one question at a time")
    now += StacksQuestions.PatienceMillis
    assert(questions.of("a").contains(StacksQuestions.Unanswered))
    questions.ask("a")
    assert(questions.take("a"))
    questions.answer("a", "x" * (StacksQuestions.MostChars + 10))
    questions.of("a") match {
      case Some(StacksQuestions.Answered(at, text)) =>
        assert(at == now && text.length == StacksQuestions.MostChars + 4, "TAB-13")
      case other => fail(String.valueOf(other))
    }
    (0 to RunStore.MostRuns).foreach(number => questions.ask(number.toString))
    assert(questions.of("a").isEmpty && questions.of("0").isEmpty && questions.of("1").nonEmpty, "TAB-13")
  }

  test("a driver that hangs leaves a sentence, and a run that is over has no button") {
    val questions = new StacksQuestions(() => now)
    val store = new RunStore(new InMemoryStore)
    val page = new RunPage(store, Some(questions))
    def html(run: String) = page.html(name => if (name == "id") run else null).mkString
    store.take(running("hangs"))
    store.take(Samples.event(Samples.run("over")))
    assert(html("hangs").contains("<form") && !html("over").contains("<form"))
    questions.ask("hangs")
    assert(!html("hangs").contains("<form") && html("hangs").contains("http-equiv=\"refresh\""))
    now += StacksQuestions.PatienceMillis
    assert(html("hangs").contains("did not answer within 15 s") && html("hangs").contains("<form"))
    assert(!new RunPage(store).html(name => if (name == "id") "hangs" else null).mkString.contains("<form"))
  }
}
